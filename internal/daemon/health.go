package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"
)

// server answers /livez, /readyz, /health and /metrics.
type server struct {
	listener net.Listener
	http     *http.Server
}

// listen takes the address at once, so that a taken port is known before any
// route runs.
func listen(addr string, standings func() []Standing, metrics http.Handler) (*server, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.Handle("GET /readyz", answer(standings, Standing.Ready))
	mux.Handle("GET /health", answer(standings, Standing.Healthy))
	mux.Handle("GET /metrics", metrics)
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
