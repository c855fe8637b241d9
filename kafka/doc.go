// Package kafka reads and writes brokers that speak Kafka's protocol, on
// franz-go.
//
// [Source] is a member of a consumer group that gives the machine of package
// inbox its runs. The group says which partitions are ours; where reading begins
// and goes on is the machine's decision alone, so the source asks the broker for
// exactly that: each fetch names the topic's identity and the leader epoch that
// the machine has proved, and a broker that knows others refuses. There is no
// reset policy. What can't go on as it was is answered as doubted, and waits for
// the next Seek.
//
// [Sender] sends messages until they are durable, [Admin] is what commands ask a
// broker. Rows, transactions of a database and message IDs are not known here.
package kafka
