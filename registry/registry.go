package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/sr"

	"github.com/semelhq/semel"
)

// Config says how to reach a registry.
type Config struct {
	// URLs of one registry; the second is tried where the first doesn't answer.
	URLs []string
	// User and Password are for basic authentication; no User: none. The password
	// is asked for at every request.
	User     string
	Password func() (string, error)
	// Token is for bearer authentication instead; nil: none.
	Token func() (string, error)
	// DialTLS opens connections to https URLs; nil: with the machine's roots.
	DialTLS func(ctx context.Context, network, addr string) (net.Conn, error)
	// Timeout bounds a request. Default 5s.
	Timeout time.Duration
}

// Registry is a client with a memory for schemas. It may be used from several
// goroutines.
type Registry struct {
	client *sr.Client
	http   *http.Transport
	urls   string
	ctx    context.Context // ends with Close
	cancel context.CancelFunc

	decoders [3]*Decoder
}

// New makes a registry and asks it for nothing yet.
func New(cfg Config) (*Registry, error) {
	if cfg.Timeout == 0 {
		cfg.Timeout = 5 * time.Second
	}
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.DialTLSContext = cfg.DialTLS
	r := &Registry{http: t, urls: strings.Join(cfg.URLs, ",")}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	var err error
	r.client, err = sr.NewClient(
		sr.URLs(append([]string(nil), cfg.URLs...)...),
		sr.UserAgent("semel"),
		sr.HTTPClient(&http.Client{Timeout: cfg.Timeout, Transport: bounded{t}}),
		sr.PreReq(cfg.sign),
	)
	for f := range r.decoders {
		r.decoders[f] = &Decoder{registry: r, format: Format(f)}
	}
	return r, err
}

// Close ends what is being asked.
func (r *Registry) Close() {
	r.cancel()
	r.http.CloseIdleConnections()
}

// sign adds who we are.
func (c *Config) sign(req *http.Request) error {
	switch {
	case c.Token != nil:
		token, err := c.Token()
		if err != nil {
			return err
		}
		req.Header.Set("Authorization", "Bearer "+token)
	case c.User != "":
		password := ""
		if c.Password != nil {
			var err error
			if password, err = c.Password(); err != nil {
				return err
			}
		}
		req.SetBasicAuth(c.User, password)
	}
	return nil
}

// maxAnswer bounds an answer, in bytes.
const maxAnswer = 16 << 20

// bounded cuts answers that no schema needs.
type bounded struct{ http.RoundTripper }

func (b bounded) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := b.RoundTripper.RoundTrip(req)
	if err == nil {
		resp.Body = body{io.LimitReader(resp.Body, maxAnswer), resp.Body}
	}
	return resp, err
}

type body struct {
	io.Reader
	io.Closer
}

// Schema is a schema's text, and those that it refers to.
type Schema struct {
	ID   int
	Type string // AVRO, PROTOBUF or JSON
	Text string
	// References come each after what they refer to themselves.
	References []Reference
}

// Reference is a schema by the name under which another one has it.
type Reference struct{ Name, Text string }

// ErrUnknown says that the registry doesn't have a schema.
var ErrUnknown = errors.New("the schema registry doesn't have it")

// Ping asks whether the registry answers us; its error is a *semel.OutageError.
func (r *Registry) Ping(ctx context.Context) error {
	if err := r.client.Do(ctx, http.MethodGet, "/subjects", nil, new(json.RawMessage)); err != nil {
		return r.outage(err)
	}
	return nil
}

// ByID fetches a schema: ErrUnknown, or a *semel.OutageError.
func (r *Registry) ByID(ctx context.Context, id int) (Schema, error) {
	s, err := r.client.SchemaByID(ctx, id)
	if err != nil {
		return Schema{}, r.wrong(err)
	}
	return r.whole(ctx, id, s)
}

// Latest fetches the newest schema of a subject: ErrUnknown if there is none, or a
// *semel.OutageError.
func (r *Registry) Latest(ctx context.Context, subject string) (Schema, error) {
	s, err := r.client.SchemaByVersion(ctx, subject, -1)
	if err != nil {
		return Schema{}, r.wrong(err)
	}
	return r.whole(ctx, s.ID, s.Schema)
}

// whole fetches what a schema refers to.
func (r *Registry) whole(ctx context.Context, id int, s sr.Schema) (Schema, error) {
	out := Schema{ID: id, Type: s.Type.String(), Text: s.Schema}
	w := walk{r: r, out: &out, seen: map[string]bool{}}
	return out, w.references(sr.WithParams(ctx, sr.ShowDeleted), s.References, 0)
}

// Bounds of what one schema may refer to.
const (
	maxReferences = 1000
	maxNesting    = 100
)

var errReferences = errors.New("a schema that refers to too many others")

type walk struct {
	r    *Registry
	out  *Schema
	seen map[string]bool
}

func (w *walk) references(ctx context.Context, refs []sr.SchemaReference, depth int) error {
	for _, ref := range refs {
		key := fmt.Sprintf("%d %s %s", ref.Version, ref.Subject, ref.Name)
		if w.seen[key] {
			continue
		}
		w.seen[key] = true
		if depth > maxNesting || len(w.seen) > maxReferences {
			return errReferences
		}
		s, err := w.r.client.SchemaByVersion(ctx, ref.Subject, ref.Version)
		if err != nil {
			if err = w.r.wrong(err); errors.Is(err, ErrUnknown) {
				err = fmt.Errorf("version %d of %q, which is referred to: %w", ref.Version, ref.Subject, ErrUnknown)
			}
			return err
		}
		if err := w.references(ctx, s.References, depth+1); err != nil {
			return err
		}
		w.out.References = append(w.out.References, Reference{ref.Name, s.Schema.Schema})
	}
	return nil
}

// wrong tells an answer that there is no such schema from a registry that can't be
// used. Only the registry's own codes count: a 404 of a proxy, or of a wrong URL,
// says nothing about a schema.
func (r *Registry) wrong(err error) error {
	var e *sr.ResponseError
	if errors.As(err, &e) {
		switch e.ErrorCode {
		case sr.ErrSubjectNotFound.Code, sr.ErrVersionNotFound.Code, sr.ErrSchemaNotFound.Code,
			sr.ErrSubjectSoftDeleted.Code, sr.ErrSchemaVersionSoftDeleted.Code:
			return ErrUnknown
		}
	}
	return r.outage(err)
}

func (r *Registry) outage(err error) error {
	var e *sr.ResponseError
	var u *url.Error
	switch {
	case errors.As(err, &u):
		err = u.Err
	case !errors.As(err, &e):
	case e.StatusCode == http.StatusUnauthorized || e.StatusCode == http.StatusForbidden:
		err = fmt.Errorf("it refuses our credentials (HTTP %d)", e.StatusCode)
	default:
		err = fmt.Errorf("HTTP %d: %.200s", e.StatusCode, strings.Join(strings.Fields(e.Error()), " "))
	}
	return semel.Outage(fmt.Errorf("schema registry %s: %w", r.urls, err))
}
