# Functions to start and end a `dsec dev` of one's own; sourced by scripts. It never becomes the user's current context.

dsec=$PWD/bin/dsec

# dev_start DATA: starts a node on the data folder, waits until it is ready, and makes it the context of this shell.
dev_start() {
	mkdir -p "$1"
	rm -f "$1/stdout"
	mkfifo "$1/stdout"
	"$dsec" dev --data "$1" --listen 127.0.0.1:0 --no-context >"$1/stdout" 2>>"$1/log" </dev/null &
	dev_pid=$!
	exec 3<"$1/stdout"
	local line
	while IFS= read -r -t 60 line <&3; do
		if [[ $line == ready\ http://* ]]; then
			export DSEC_CONTEXT=$1/context.json
			return 0
		fi
	done
	echo "dsec dev didn't get ready; its log:" >&2
	tail -n 20 "$1/log" >&2
	return 1
}

# dev_stop: what Ctrl-C does. Its sandboxes are stopped.
dev_stop() {
	[ -n "${dev_pid:-}" ] || return 0
	kill -TERM "$dev_pid" 2>/dev/null || true
	wait "$dev_pid" || true
	dev_pid=
}

# dev_kill: kill -9. Its sandboxes go on.
dev_kill() {
	kill -KILL "$dev_pid"
	wait "$dev_pid" 2>/dev/null || true
	dev_pid=
}
