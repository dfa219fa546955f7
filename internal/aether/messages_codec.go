package aether

// AppendTo appends m in wire format to b.
func (m *Hello) AppendTo(b []byte) []byte {
	b = appendVarint(b, 1, uint64(m.MinVersion))
	b = appendVarint(b, 2, uint64(m.MaxVersion))
	b = appendVarint(b, 3, m.Features)
	b = appendString(b, 4, m.Name)
	b = appendVarint(b, 5, uint64(m.MaxData))
	b = appendVarint(b, 6, uint64(m.Window))
	return appendVarint(b, 7, uint64(m.MaxStreams))
}

// Unmarshal decodes b into m; fields it doesn't know are skipped.
func (m *Hello) Unmarshal(b []byte) error {
	*m = Hello{}
	d := decoder{rest: b}
	for d.next() {
		switch d.field {
		case 1:
			m.MinVersion = uint8(d.uint(8))
		case 2:
			m.MaxVersion = uint8(d.uint(8))
		case 3:
			m.Features = d.uint(64)
		case 4:
			m.Name = d.text()
		case 5:
			m.MaxData = uint32(d.uint(32))
		case 6:
			m.Window = uint32(d.uint(32))
		case 7:
			m.MaxStreams = uint32(d.uint(32))
		}
	}
	return d.done("Hello")
}

// AppendTo appends m in wire format to b.
func (m *ExecStart) AppendTo(b []byte) []byte {
	b = appendString(b, 1, m.ID)
	b = appendList(b, 2, m.Argv)
	b = appendBytes(b, 3, m.Shell)
	b = appendList(b, 4, m.Env)
	b = appendBytes(b, 5, m.Cwd)
	b = appendBool(b, 6, m.CwdCreate)
	b = appendString(b, 7, m.User)
	b = appendBool(b, 8, m.Stdin)
	b = appendBool(b, 9, m.TTY)
	b = appendVarint(b, 10, uint64(m.Rows))
	b = appendVarint(b, 11, uint64(m.Cols))
	b = appendVarint(b, 12, uint64(m.TimeoutMS))
	b = appendVarint(b, 13, uint64(m.MaxOutput))
	b = appendBool(b, 14, m.Keep)
	b = appendBool(b, 15, m.Lossless)
	b = appendString(b, 16, m.Session)
	b = appendString(b, 17, m.Tag)
	return appendBool(b, 18, m.Log)
}

// Unmarshal decodes b into m; fields it doesn't know are skipped. Its byte slices refer to b.
func (m *ExecStart) Unmarshal(b []byte) error { //nolint:cyclop // one case a field
	*m = ExecStart{}
	d := decoder{rest: b}
	for d.next() {
		switch d.field {
		case 1:
			m.ID = d.text()
		case 2:
			m.Argv = d.list(m.Argv)
		case 3:
			m.Shell = d.bytes()
		case 4:
			m.Env = d.list(m.Env)
		case 5:
			m.Cwd = d.bytes()
		case 6:
			m.CwdCreate = d.bool()
		case 7:
			m.User = d.text()
		case 8:
			m.Stdin = d.bool()
		case 9:
			m.TTY = d.bool()
		case 10:
			m.Rows = uint32(d.uint(32))
		case 11:
			m.Cols = uint32(d.uint(32))
		case 12:
			m.TimeoutMS = d.int(64)
		case 13:
			m.MaxOutput = d.int(64)
		case 14:
			m.Keep = d.bool()
		case 15:
			m.Lossless = d.bool()
		case 16:
			m.Session = d.text()
		case 17:
			m.Tag = d.text()
		case 18:
			m.Log = d.bool()
		}
	}
	return d.done("ExecStart")
}

// AppendTo appends m in wire format to b.
func (m *Started) AppendTo(b []byte) []byte {
	b = appendString(b, 1, m.ID)
	b = appendVarint(b, 2, uint64(int64(m.PIDInside)))
	return appendVarint(b, 3, uint64(m.StartedAtUnixNano))
}

// Unmarshal decodes b into m; fields it doesn't know are skipped.
func (m *Started) Unmarshal(b []byte) error {
	*m = Started{}
	d := decoder{rest: b}
	for d.next() {
		switch d.field {
		case 1:
			m.ID = d.text()
		case 2:
			m.PIDInside = int32(d.int(32))
		case 3:
			m.StartedAtUnixNano = d.int(64)
		}
	}
	return d.done("Started")
}

// AppendTo appends m in wire format to b.
func (m *Exited) AppendTo(b []byte) []byte {
	b = appendBool(b, 1, m.HasCode)
	b = appendVarint(b, 2, uint64(int64(m.Code)))
	b = appendVarint(b, 3, uint64(int64(m.Signal)))
	b = appendBool(b, 4, m.TimedOut)
	b = appendBool(b, 5, m.OOMKilled)
	b = appendBool(b, 6, m.Cancelled)
	b = appendBool(b, 7, m.StdinClosedEarly)
	b = appendBool(b, 8, m.Truncated)
	b = appendBool(b, 9, m.LeftProcesses)
	b = appendString(b, 10, m.InfraError)
	b = appendVarint(b, 11, uint64(m.StdoutTotal))
	b = appendVarint(b, 12, uint64(m.StderrTotal))
	b = appendVarint(b, 13, uint64(m.StartedAtUnixNano))
	b = appendVarint(b, 14, uint64(m.DurationNano))
	b = appendVarint(b, 15, uint64(m.TimeoutMS))
	b = appendVarint(b, 16, uint64(m.MemoryLimit))
	return appendVarint(b, 17, uint64(m.MemoryPeak))
}

// Unmarshal decodes b into m; fields it doesn't know are skipped.
func (m *Exited) Unmarshal(b []byte) error { //nolint:cyclop // one case a field
	*m = Exited{}
	d := decoder{rest: b}
	for d.next() {
		switch d.field {
		case 1:
			m.HasCode = d.bool()
		case 2:
			m.Code = int32(d.int(32))
		case 3:
			m.Signal = int32(d.int(32))
		case 4:
			m.TimedOut = d.bool()
		case 5:
			m.OOMKilled = d.bool()
		case 6:
			m.Cancelled = d.bool()
		case 7:
			m.StdinClosedEarly = d.bool()
		case 8:
			m.Truncated = d.bool()
		case 9:
			m.LeftProcesses = d.bool()
		case 10:
			m.InfraError = d.text()
		case 11:
			m.StdoutTotal = d.int(64)
		case 12:
			m.StderrTotal = d.int(64)
		case 13:
			m.StartedAtUnixNano = d.int(64)
		case 14:
			m.DurationNano = d.int(64)
		case 15:
			m.TimeoutMS = d.int(64)
		case 16:
			m.MemoryLimit = d.int(64)
		case 17:
			m.MemoryPeak = d.int(64)
		}
	}
	return d.done("Exited")
}

// AppendTo appends m in wire format to b.
func (m *Gap) AppendTo(b []byte) []byte {
	b = appendVarint(b, 1, uint64(m.Channel))
	b = appendVarint(b, 2, uint64(m.Offset))
	return appendVarint(b, 3, uint64(m.Length))
}

// Unmarshal decodes b into m; fields it doesn't know are skipped.
func (m *Gap) Unmarshal(b []byte) error {
	*m = Gap{}
	d := decoder{rest: b}
	for d.next() {
		switch d.field {
		case 1:
			m.Channel = uint8(d.uint(8))
		case 2:
			m.Offset = d.int(64)
		case 3:
			m.Length = d.int(64)
		}
	}
	return d.done("Gap")
}

// AppendTo appends m in wire format to b.
func (m *Attach) AppendTo(b []byte) []byte {
	b = appendString(b, 1, m.ID)
	b = appendVarint(b, 2, uint64(m.StdoutOffset))
	b = appendVarint(b, 3, uint64(m.StderrOffset))
	b = appendBool(b, 4, m.Stdin)
	b = appendBool(b, 5, m.FromNow)
	return appendBool(b, 6, m.NoFollow)
}

// Unmarshal decodes b into m; fields it doesn't know are skipped.
func (m *Attach) Unmarshal(b []byte) error {
	*m = Attach{}
	d := decoder{rest: b}
	for d.next() {
		switch d.field {
		case 1:
			m.ID = d.text()
		case 2:
			m.StdoutOffset = d.int(64)
		case 3:
			m.StderrOffset = d.int(64)
		case 4:
			m.Stdin = d.bool()
		case 5:
			m.FromNow = d.bool()
		case 6:
			m.NoFollow = d.bool()
		}
	}
	return d.done("Attach")
}

// AppendTo appends m in wire format to b.
func (m *Signal) AppendTo(b []byte) []byte {
	b = appendString(b, 1, m.ID)
	b = appendVarint(b, 2, uint64(int64(m.Signal)))
	return appendBool(b, 3, m.Tree)
}

// Unmarshal decodes b into m; fields it doesn't know are skipped.
func (m *Signal) Unmarshal(b []byte) error {
	*m = Signal{}
	d := decoder{rest: b}
	for d.next() {
		switch d.field {
		case 1:
			m.ID = d.text()
		case 2:
			m.Signal = int32(d.int(32))
		case 3:
			m.Tree = d.bool()
		}
	}
	return d.done("Signal")
}

// AppendTo appends m in wire format to b.
func (m *Resize) AppendTo(b []byte) []byte {
	b = appendString(b, 1, m.ID)
	b = appendVarint(b, 2, uint64(m.Rows))
	return appendVarint(b, 3, uint64(m.Cols))
}

// Unmarshal decodes b into m; fields it doesn't know are skipped.
func (m *Resize) Unmarshal(b []byte) error {
	*m = Resize{}
	d := decoder{rest: b}
	for d.next() {
		switch d.field {
		case 1:
			m.ID = d.text()
		case 2:
			m.Rows = uint32(d.uint(32))
		case 3:
			m.Cols = uint32(d.uint(32))
		}
	}
	return d.done("Resize")
}

// AppendTo appends m in wire format to b.
func (m *Ack) AppendTo(b []byte) []byte { return appendBool(b, 1, m.Dropped) }

// Unmarshal decodes b into m; fields it doesn't know are skipped.
func (m *Ack) Unmarshal(b []byte) error {
	*m = Ack{}
	d := decoder{rest: b}
	for d.next() {
		if d.field == 1 {
			m.Dropped = d.bool()
		}
	}
	return d.done("Ack")
}

// AppendTo appends m in wire format to b.
func (m *AddBox) AppendTo(b []byte) []byte {
	b = appendString(b, 1, m.Name)
	b = appendString(b, 2, m.User)
	b = appendString(b, 3, m.Hostname)
	b = appendList(b, 4, m.Env)
	b = appendVarint(b, 5, uint64(int64(m.CPUs)))
	b = appendVarint(b, 16, uint64(m.Ends))
	return appendBool(b, 17, m.Fresh)
}

// Unmarshal decodes b into m; fields it doesn't know are skipped. Its byte slices refer to b.
func (m *AddBox) Unmarshal(b []byte) error {
	*m = AddBox{}
	d := decoder{rest: b}
	for d.next() {
		switch d.field {
		case 1:
			m.Name = d.text()
		case 2:
			m.User = d.text()
		case 3:
			m.Hostname = d.text()
		case 4:
			m.Env = d.list(m.Env)
		case 5:
			m.CPUs = int32(d.int(32))
		case 16:
			m.Ends = d.int(64)
		case 17:
			m.Fresh = d.bool()
		}
	}
	return d.done("AddBox")
}
