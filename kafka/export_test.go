package kafka

// Ahead is how many bytes are decompressed and not handed out.
func Ahead(s *Source) int64 { return s.ahead.Load() }

// Waiting is how many partitions have something to hand out.
func Waiting(s *Source) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.order {
		if len(p.buf) > 0 {
			n++
		}
	}
	return n
}
