package aether

// Streams is the number of streams with state on this side.
func (c *Conn) Streams() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.streams) + len(c.opening)
}

// Queued is what waits to be received: bytes and frames.
func (s *Stream) Queued() (bytes, frames int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.in.n {
		bytes += len(s.in.ring[(s.in.head+i)&(len(s.in.ring)-1)].Data)
	}
	return bytes, s.in.n
}

// WriteCorrupt writes data whose checksum is wrong.
func (s *Stream) WriteCorrupt(ch Channel, p []byte) {
	buf := s.conn.bufs.get(len(p))
	copy(buf.b, p)
	f := outFrame{buf: buf, crc: checksum(p) ^ 1, channel: ch}
	s.conn.mu.Lock()
	s.out.push(f)
	s.conn.readyLocked(s)
	s.conn.kickLocked(true)
}
