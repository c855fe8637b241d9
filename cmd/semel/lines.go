package main

import (
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
)

// maxLine bounds a line: more is a file of another kind, not a message.
const maxLine = 64 << 20

// line is a line of an input, without its end.
type line struct {
	file   string
	number int64 // from 1
	bytes  []byte
}

// eachLine hands over the lines of the files in order, "-" or no file being
// standard input. What gzip wrote is unpacked, whatever its name. Empty lines
// are left out and counted.
func eachLine(files []string, in io.Reader, do func(line) error) (empty int64, err error) {
	if len(files) == 0 {
		files = []string{"-"}
	}
	for _, name := range files {
		n, err := linesOf(name, in, do)
		empty += n
		if err != nil {
			return empty, err
		}
	}
	return empty, nil
}

func linesOf(name string, in io.Reader, do func(line) error) (empty int64, err error) {
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return 0, usage(err, "")
		}
		defer f.Close()
		in = f
	} else {
		name = "standard input"
	}
	r := bufio.NewReaderSize(in, 64<<10)
	if magic, _ := r.Peek(2); len(magic) == 2 && magic[0] == 0x1f && magic[1] == 0x8b {
		unpacked, err := gzip.NewReader(r)
		if err != nil {
			return 0, usage(fmt.Errorf("%s: %w", name, err), "")
		}
		defer unpacked.Close()
		r = bufio.NewReaderSize(unpacked, 64<<10)
	}
	for number := int64(1); ; number++ {
		b, err := readLine(r)
		if errors.Is(err, io.EOF) {
			return empty, nil
		}
		if err != nil {
			return empty, usage(fmt.Errorf("%s:%d: %w", name, number, err), "")
		}
		if len(b) == 0 {
			empty++
			continue
		}
		if err := do(line{name, number, b}); err != nil {
			return empty, err
		}
	}
}

var errLongLine = fmt.Errorf("the line is longer than %d bytes", maxLine)

// readLine answers a line in memory of its own.
func readLine(r *bufio.Reader) ([]byte, error) {
	var b []byte
	for {
		part, err := r.ReadSlice('\n')
		b = append(b, part...)
		if len(b) > maxLine {
			return nil, errLongLine
		}
		switch {
		case err == nil:
			b = b[:len(b)-1]
			if n := len(b); n > 0 && b[n-1] == '\r' {
				b = b[:n-1]
			}
			return b, nil
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF) && len(b) > 0:
			return b, nil
		default:
			return nil, err
		}
	}
}
