package spawn

import (
	"encoding/binary"
	"fmt"
)

// TinyInit is PID 1 of a sandbox as an ELF file for arch (as GOARCH names it): it ignores SIGCHLD, so that the kernel
// reaps orphans by itself, and sleeps for ever. It has no memory, descriptor or power that anybody could want.
func TinyInit(arch string) ([]byte, error) {
	switch arch {
	case "amd64":
		return tinyELF(62, initAMD64()), nil
	case "arm64":
		return tinyELF(183, initARM64()), nil
	}
	return nil, fmt.Errorf("no tiny init for %s", arch)
}

const sigactionSize = 32 // struct kernel_sigaction on both; handler first, the rest zero

// ignoreAction is a struct kernel_sigaction with SIG_IGN.
func ignoreAction() []byte {
	a := make([]byte, sigactionSize)
	a[0] = 1
	return a
}

// initAMD64 is rt_sigaction(SIGCHLD, act, NULL, 8); for (;;) pause().
func initAMD64() []byte {
	code := []byte{
		0xB8, 13, 0, 0, 0, // mov eax, rt_sigaction
		0xBF, 17, 0, 0, 0, // mov edi, SIGCHLD
		0x48, 0x8D, 0x35, 19, 0, 0, 0, // lea rsi, [rip+19]: behind the code
		0x31, 0xD2, // xor edx, edx
		0x41, 0xBA, 8, 0, 0, 0, // mov r10d, 8
		0x0F, 0x05, // syscall
		0xB8, 34, 0, 0, 0, // mov eax, pause
		0x0F, 0x05, // syscall
		0xEB, 0xF7, // jmp to mov eax, pause
	}
	return append(code, ignoreAction()...)
}

// initARM64 is the same with a ppoll of nothing, because arm64 has no pause.
func initARM64() []byte {
	movz := func(reg, imm uint32) uint32 { return 0xD2800000 | imm<<5 | reg }
	const svc = 0xD4000001
	code := []uint32{
		movz(0, 17),
		0, // adr x1, act: filled below
		movz(2, 0),
		movz(3, 8),
		movz(8, 134), // rt_sigaction
		svc,
		movz(0, 0), // the loop begins here
		movz(1, 0),
		movz(2, 0),
		movz(3, 0),
		movz(4, 0),
		movz(8, 73), // ppoll
		svc,
		0, // b loop: filled below
	}
	loop, branch, adr := 6, len(code)-1, 1
	code[adr] = 0x10000000 | uint32(len(code)-adr)<<5 | 1
	code[branch] = 0x14000000 | uint32(int32(loop-branch))&0x3ffffff
	var b []byte
	for _, c := range code {
		b = binary.LittleEndian.AppendUint32(b, c)
	}
	return append(b, ignoreAction()...)
}

// tinyELF puts text behind the smallest headers that the kernel takes: one loadable segment that holds the whole file.
func tinyELF(machine uint16, text []byte) []byte {
	const (
		base    = 0x400000
		headers = 64 + 56
	)
	le := binary.LittleEndian
	b := make([]byte, headers, headers+len(text))
	copy(b, "\x7fELF\x02\x01\x01") // 64 bit, little endian, version 1
	le.PutUint16(b[16:], 2)        // executable
	le.PutUint16(b[18:], machine)
	le.PutUint32(b[20:], 1)
	le.PutUint64(b[24:], base+headers) // entry
	le.PutUint64(b[32:], 64)           // program headers
	le.PutUint16(b[52:], 64)
	le.PutUint16(b[54:], 56)
	le.PutUint16(b[56:], 1)
	p := b[64:]
	le.PutUint32(p[0:], 1) // PT_LOAD
	le.PutUint32(p[4:], 5) // read, execute
	le.PutUint64(p[16:], base)
	le.PutUint64(p[24:], base)
	le.PutUint64(p[32:], uint64(headers+len(text)))
	le.PutUint64(p[40:], uint64(headers+len(text)))
	le.PutUint64(p[48:], 0x10000)
	return append(b, text...)
}
