package sink

import "iter"

// Elements are those of an array, in order; nothing for other kinds.
func (v Value) Elements() iter.Seq[Value] {
	return func(yield func(Value) bool) {
		if v.Kind != Array {
			return
		}
		s := scanner{data: v.Raw} // what it reads was checked before
		for i := s.space(1); v.Raw[i] != ']'; {
			s.flags = 0
			end := s.value(i, nil)
			if end < 0 || !yield(Value{Kind: kindOf(v.Raw[i]), flags: s.flags, Raw: v.Raw[i:end:end]}) {
				return
			}
			if i = s.space(end); v.Raw[i] == ',' {
				i = s.space(i + 1)
			}
		}
	}
}

// Members are the names and values of an object, in order; nothing for other
// kinds.
func (v Value) Members() iter.Seq2[Value, Value] {
	return func(yield func(name, value Value) bool) {
		if v.Kind != Object {
			return
		}
		s := scanner{data: v.Raw} // what it reads was checked before
		for i := s.space(1); v.Raw[i] != '}'; {
			s.flags = 0
			end := s.value(i, nil)
			name := Value{Kind: String, flags: s.flags, Raw: v.Raw[i:end:end]}
			i = s.space(s.space(end) + 1) // past the colon
			s.flags = 0
			if end = s.value(i, nil); end < 0 || !yield(name, Value{Kind: kindOf(v.Raw[i]), flags: s.flags, Raw: v.Raw[i:end:end]}) {
				return
			}
			if i = s.space(end); v.Raw[i] == ',' {
				i = s.space(i + 1)
			}
		}
	}
}
