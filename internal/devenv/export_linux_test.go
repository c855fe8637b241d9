package devenv

import "testing"

// WithoutNamespaces makes root run PostgreSQL as another user during t, which must not be parallel.
func WithoutNamespaces(t *testing.T) {
	withoutNamespaces = true
	t.Cleanup(func() { withoutNamespaces = false })
}
