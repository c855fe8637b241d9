// Command webhook receives GitHub's webhooks and counts pushed commits. GitHub
// sends a delivery again when somebody asks it to, or a proxy does; each carries
// its ID in X-GitHub-Delivery. No broker is involved: Admit is all there is. 200
// is said after COMMIT, so what was never answered may be sent again.
//
//	DATABASE_URL=… WEBHOOK_SECRET=… LISTEN=127.0.0.1:8080 go run ./webhook
package main

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/postgres"
)

type receiver struct {
	pool   *pgxpool.Pool
	store  *postgres.InboxStore
	secret []byte
}

func (h *receiver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 25<<20))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	sum := hmac.New(sha256.New, h.secret)
	sum.Write(body)
	if !hmac.Equal([]byte(r.Header.Get("X-Hub-Signature-256")), []byte("sha256="+hex.EncodeToString(sum.Sum(nil)))) {
		http.Error(w, "wrong signature", http.StatusUnauthorized)
		return
	}
	id := r.Header.Get("X-GitHub-Delivery")
	if id == "" {
		http.Error(w, "no X-GitHub-Delivery", http.StatusBadRequest)
		return
	}
	err = pgx.BeginFunc(r.Context(), h.pool, func(tx pgx.Tx) error {
		fresh, err := h.store.Admit(r.Context(), tx, "github", semel.IDOf([]byte(id)))
		if err != nil || !fresh || r.Header.Get("X-GitHub-Event") != "push" {
			return err
		}
		return push(r.Context(), tx, body)
	})
	if err != nil {
		log.Print(err)
		http.Error(w, "try again", http.StatusInternalServerError)
	}
}

func push(ctx context.Context, tx pgx.Tx, body []byte) error {
	var e struct {
		Repository struct {
			FullName string `json:"full_name"`
		}
		Commits []struct{}
	}
	if err := json.Unmarshal(body, &e); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, `INSERT INTO repository (name, commits) VALUES ($1, $2)
		ON CONFLICT (name) DO UPDATE SET commits = repository.commits + excluded.commits`, e.Repository.FullName, len(e.Commits))
	return err
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil && ctx.Err() == nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer pool.Close()
	if _, err := pool.Exec(ctx, `CREATE TABLE IF NOT EXISTS repository (name text PRIMARY KEY, commits bigint NOT NULL)`); err != nil {
		return err
	}
	l, err := net.Listen("tcp", os.Getenv("LISTEN"))
	if err != nil {
		return err
	}
	log.Print("listening on ", l.Addr())
	store := postgres.NewInboxStore(pool, postgres.InboxConfig{})
	go daily(ctx, store)
	s := &http.Server{Handler: &receiver{pool: pool, store: store, secret: []byte(os.Getenv("WEBHOOK_SECRET"))}, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		<-ctx.Done()
		s.Shutdown(context.WithoutCancel(ctx)) // what is being answered is finished
	}()
	return s.Serve(l)
}

// daily forgets what GitHub no longer sends again: it keeps deliveries for 3 days.
func daily(ctx context.Context, store *postgres.InboxStore) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(24 * time.Hour):
		}
		if err := store.ForgetOlder(ctx, "github", 7*24*time.Hour); err != nil {
			log.Print(err)
		}
	}
}
