package daemon

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"
)

// server answers /livez, /readyz, /health and /metrics.
type server struct {
	listener net.Listener
	http     *http.Server
}

// listen takes the address at once, so that a taken port is known before any
// route runs. token is what who asks for more than /livez and /readyz has to know, read
// anew each time; nil: nothing.
func listen(addr string, token func() (string, error), standings func() []Standing, metrics http.Handler) (*server, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	ready := answer(standings, Standing.Ready)
	mux.Handle("GET /readyz", whoKnows(token, ready, curt(ready)))
	mux.Handle("GET /health", whoKnows(token, answer(standings, Standing.Healthy), refused))
	mux.Handle("GET /metrics", whoKnows(token, metrics, refused))
	return &server{l, &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}}, nil
}

func (s *server) run(ctx context.Context) error {
	stopped := make(chan struct{})
	defer close(stopped)
	go func() {
		select {
		case <-ctx.Done():
		case <-stopped:
		}
		s.http.Close()
	}()
	if err := s.http.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// whoKnows serves who sends the token (Authorization: Bearer), and lets others have
// the other handler. Where the token can't be read nobody knows it.
func whoKnows(token func() (string, error), all, others http.Handler) http.Handler {
	if token == nil {
		return all
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		want, err := token()
		said, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		// Hashes are as long as one another: the time says nothing about the token.
		a, b := sha256.Sum256([]byte(said)), sha256.Sum256([]byte(want))
		if err == nil && want != "" && ok && subtle.ConstantTimeCompare(a[:], b[:]) == 1 {
			all.ServeHTTP(w, r)
			return
		}
		others.ServeHTTP(w, r)
	})
}

var refused = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("WWW-Authenticate", `Bearer realm="semel"`)
	http.Error(w, "server.token is needed: Authorization: Bearer TOKEN", http.StatusUnauthorized)
})

// curt answers with the code alone: those that watch a process have no token, and need
// no names.
func curt(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		full := httpCode{header: http.Header{}, code: http.StatusOK}
		h.ServeHTTP(&full, r)
		w.Header().Set("Cache-Control", "no-store")
		w.WriteHeader(full.code)
		fmt.Fprintln(w, map[bool]string{true: "ok", false: "not ready"}[full.code == http.StatusOK])
	})
}

// httpCode keeps an answer's code alone.
type httpCode struct {
	header http.Header
	code   int
}

func (c *httpCode) Header() http.Header         { return c.header }
func (c *httpCode) WriteHeader(code int)        { c.code = code }
func (c *httpCode) Write(b []byte) (int, error) { return len(b), nil }

// answer says ok, or 503 with the routes that are not; ?verbose lists all.
func answer(standings func() []Standing, good func(Standing) bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, verbose := r.URL.Query()["verbose"]
		all := standings()
		code := http.StatusOK
		for _, s := range all {
			if !good(s) {
				code = http.StatusServiceUnavailable
			}
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store")
		w.WriteHeader(code)
		if code == http.StatusOK && !verbose {
			fmt.Fprintln(w, "ok")
			return
		}
		for _, s := range all {
			if verbose || !good(s) {
				fmt.Fprintf(w, "%s: %s\n", s.Route, s.describe())
			}
		}
	})
}

func (s Standing) describe() string {
	text := string(s.State) + " since " + s.Since.UTC().Format(time.RFC3339)
	if s.Reason != "" {
		text += ": " + s.Reason
	}
	return text
}
