package config

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
)

// Secret is a text that no output ever holds: printed, logged or marshalled, it
// hides itself.
type Secret struct {
	text string
	file string
	set  bool
}

// NewSecret is a secret that is known.
func NewSecret(text string) Secret { return Secret{text: text, set: true} }

// SecretFile is a secret in a file.
func SecretFile(path string) Secret { return Secret{file: path, set: true} }

// IsSet says whether there is one; it may be empty.
func (s Secret) IsSet() bool { return s.set }

// File is where the secret is kept, or "".
func (s Secret) File() string { return s.file }

// maxSecret bounds a secret's file, in bytes.
const maxSecret = 64 << 10

// Reveal gives the secret. One in a file is read each time, so that a changed one
// is seen, without the line break at its end.
func (s Secret) Reveal() (string, error) {
	if s.file == "" {
		return s.text, nil
	}
	f, err := os.Open(s.file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxSecret+1))
	if err != nil {
		return "", err
	}
	if len(b) > maxSecret {
		return "", &os.PathError{Op: "read secret", Path: s.file, Err: errors.New("too large")}
	}
	return strings.TrimSuffix(strings.TrimSuffix(string(b), "\n"), "\r"), nil
}

const hidden = "[hidden]"

func (s Secret) String() string { return hidden }

// Format hides the secret from every verb of fmt.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, hidden) }

func (s Secret) MarshalText() ([]byte, error) { return []byte(hidden), nil }

func (s Secret) MarshalJSON() ([]byte, error) { return []byte(`"` + hidden + `"`), nil }

func (s Secret) LogValue() slog.Value { return slog.StringValue(hidden) }
