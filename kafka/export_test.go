package kafka

// Ahead is how many bytes are decompressed and not handed out.
func Ahead(s *Source) int64 { return s.ahead.Load() }
