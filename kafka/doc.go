// Package kafka reads and writes brokers that speak Kafka's protocol, on
// franz-go. Rows, transactions of a database and message IDs are not known here.
//
// # Reading
//
// A [Source] is a member of a consumer group that gives an inbox.Inbox its runs.
// It is made from a few names and handed over; the inbox closes it:
//
//	source, err := kafka.NewSource(kafka.SourceConfig{
//		Brokers: []string{"localhost:9092"},
//		Topics:  []string{"payments"},
//		Group:   "billing",
//		Start:   kafka.StartEarliest(), // where there is no memory yet
//	})
//	billing, err := inbox.New(inbox.Config[pgx.Tx]{Consumer: "billing", Source: source, … })
//
// The group says which partitions are ours; where reading begins and goes on is
// the inbox's decision alone, so the source asks the broker for exactly that: each
// fetch names the topic's identity and the leader epoch that the inbox has proved,
// and a broker that knows others refuses. There is no reset policy. What can't go
// on as it was is answered as doubted, and waits for the next Seek.
//
// # Writing
//
// A [Sender] sends messages until they are durable: an idempotent producer that
// all replicas in sync acknowledge. A message ID in a header lets whoever reads
// it recognise what is sent twice:
//
//	sender, err := kafka.NewSender(kafka.SenderConfig{Brokers: brokers})
//	defer sender.Close()
//	for i, err := range sender.Send(ctx, messages) { … } // nil where the message is durable
//
// [Admin] is what commands ask a broker: topics, logs, groups. TLS and SASL are
// options for all three, see [Security].
//
// # Reading the code
//
// source.go is the seam; member.go joins the group, fetch.go asks for bytes, batch.go
// makes messages of them, ack.go tells the group how far we are, and witness.go what
// broker and group know of a partition.
package kafka
