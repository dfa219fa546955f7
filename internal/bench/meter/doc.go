// Package meter reads what the kernel says of the machine's memory, and of the processes and groups of one DSec instance.
package meter
