package aether

// AppendTo appends m in wire format to b.
func (m *Hello) AppendTo(b []byte) []byte { return b }

// Unmarshal decodes b into m.
func (m *Hello) Unmarshal(b []byte) error { return nil }

// AppendTo appends m in wire format to b.
func (m *ExecStart) AppendTo(b []byte) []byte { return b }

// Unmarshal decodes b into m.
func (m *ExecStart) Unmarshal(b []byte) error { return nil }

// AppendTo appends m in wire format to b.
func (m *Started) AppendTo(b []byte) []byte { return b }

// Unmarshal decodes b into m.
func (m *Started) Unmarshal(b []byte) error { return nil }

// AppendTo appends m in wire format to b.
func (m *Exited) AppendTo(b []byte) []byte { return b }

// Unmarshal decodes b into m.
func (m *Exited) Unmarshal(b []byte) error { return nil }

// AppendTo appends m in wire format to b.
func (m *Gap) AppendTo(b []byte) []byte { return b }

// Unmarshal decodes b into m.
func (m *Gap) Unmarshal(b []byte) error { return nil }

// AppendTo appends m in wire format to b.
func (m *Attach) AppendTo(b []byte) []byte { return b }

// Unmarshal decodes b into m.
func (m *Attach) Unmarshal(b []byte) error { return nil }

// AppendTo appends m in wire format to b.
func (m *Signal) AppendTo(b []byte) []byte { return b }

// Unmarshal decodes b into m.
func (m *Signal) Unmarshal(b []byte) error { return nil }

// AppendTo appends m in wire format to b.
func (m *Resize) AppendTo(b []byte) []byte { return b }

// Unmarshal decodes b into m.
func (m *Resize) Unmarshal(b []byte) error { return nil }

// AppendTo appends m in wire format to b.
func (m *AddBox) AppendTo(b []byte) []byte { return b }

// Unmarshal decodes b into m.
func (m *AddBox) Unmarshal(b []byte) error { return nil }
