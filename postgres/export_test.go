package postgres

// Refusals counts the batches that the server refused for keys that weren't suspected.
func (t *Table) Refusals() int { return t.guess.refused }

// NameSessions is what SQL must agree with.
var NameSessions = nameSessions
