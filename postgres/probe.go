package postgres

import "context"

// Savepoints of probes: one below all of them, and one below the next, which is there
// before that begins. A piece is judged below a savepoint of its own, so that
// constraints are deferred again for the next one. Released ones are kept by the
// server as subtransactions until the transaction ends or an outer one is rolled back
// to: that is what [inboxTx.TakeBack] is for, and why probes are few at a time.
const (
	probesBegin = "SAVEPOINT semel_probes; SAVEPOINT semel_probe"
	probeKeep   = "SAVEPOINT semel_judge; SET CONSTRAINTS ALL IMMEDIATE; ROLLBACK TO SAVEPOINT semel_judge; RELEASE SAVEPOINT semel_probe; SAVEPOINT semel_probe"
	probeUndo   = "ROLLBACK TO SAVEPOINT semel_probe"
	probesUndo  = "ROLLBACK TO SAVEPOINT semel_probes; RELEASE SAVEPOINT semel_probes"
	probesKeep  = "RELEASE SAVEPOINT semel_probes"
)

// Probe runs f below a savepoint.
func (t *inboxTx) Probe(ctx context.Context, f func() error) error {
	// What a table has prepared for the transaction's own Apply waits for that one.
	asked, atCommit := t.asked.savepoint, len(t.atCommit)
	t.asked.savepoint = false
	defer func() { t.asked.savepoint, t.atCommit = asked, t.atCommit[:atCommit] }()
	if !t.probing {
		if err := t.exec(ctx, probesBegin); err != nil {
			return err
		}
		t.probing = true
	}
	err := f()
	if err == nil {
		err = t.exec(ctx, probeKeep)
	}
	if err == nil {
		return nil
	}
	if undo := t.exec(ctx, probeUndo); undo != nil {
		return undo
	}
	return err
}

// TakeBack rolls back to before the first probe.
func (t *inboxTx) TakeBack(ctx context.Context) error {
	if !t.probing {
		return nil
	}
	t.probing = false
	return t.exec(ctx, probesUndo)
}

func (t *inboxTx) exec(ctx context.Context, sql string) error {
	_, err := t.conn.PgConn().Exec(ctx, sql).ReadAll()
	return t.note(err)
}
