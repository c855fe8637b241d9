"""A loop of its own in Python: psycopg and confluent-kafka, with both memories as SQL.

The watermark (semel.claim, semel.advance) is for what the broker delivers again, semel.admit_batch for what
producers send again. A batch is one transaction. The tables are made beforehand, by `semel migrate`.

    pip install -r python/requirements.txt
    KAFKA_BROKERS=... DATABASE_URL=... python3 python/main.py
"""

import json
import os
import signal
import sys

import psycopg
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

CONSUMER = "python"
db = psycopg.connect(os.environ["DATABASE_URL"], autocommit=True)
places = {}  # (topic, partition): [token, where we stand]
batch = []
stopping = []


def assigned(consumer, partitions):
    """Throws away what was fetched under older claims, claims, and reads from where the claims say."""
    revoked()
    for p in partitions:
        token, p.offset = db.execute(
            "SELECT token, next_offset FROM semel.claim(%s, %s, %s, 0)", (CONSUMER, p.topic, p.partition)
        ).fetchone()
        places[p.topic, p.partition] = [token, p.offset]
    consumer.assign(partitions)


def revoked(*_):
    batch.clear()
    places.clear()


def settle():
    """One transaction: the watermarks, the fresh ones, their effects."""
    ends = {(m.topic(), m.partition()): m.offset() + 1 for m in batch}
    payments = {dict(m.headers())["message-id"].decode(): json.loads(m.value()) for m in batch}
    with db.transaction():
        for (topic, partition), end in sorted(ends.items()):  # before any effect, and in one order
            token, at = places[topic, partition]
            db.execute("SELECT semel.advance(%s, %s, %s, %s, %s, %s)", (CONSUMER, topic, partition, token, at, end))
        fresh = db.execute("SELECT semel.admit_batch(%s, %s::text[])", (CONSUMER, list(payments))).fetchall()
        for (sent,) in fresh:
            db.execute(
                "INSERT INTO account (id, balance) VALUES (%s, %s)"
                " ON CONFLICT (id) DO UPDATE SET balance = account.balance + excluded.balance",
                (payments[sent]["account"], payments[sent]["amount"]),
            )
    for place, end in ends.items():
        places[place][1] = end
    return [TopicPartition(topic, partition, end) for (topic, partition), end in ends.items()]


def main():
    db.execute("CREATE TABLE IF NOT EXISTS account (id text PRIMARY KEY, balance bigint NOT NULL)")
    consumer = Consumer(
        {
            "bootstrap.servers": os.environ["KAFKA_BROKERS"],
            "group.id": CONSUMER,
            "session.timeout.ms": 6000,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",  # a place that is gone is for us to decide about
        }
    )
    consumer.subscribe(["payments"], on_assign=assigned, on_revoke=revoked, on_lost=revoked)
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(True))
    while not stopping:
        m = consumer.poll(0 if batch else 0.1)
        if m is not None and m.error():
            if m.error().fatal() or m.error().code() == KafkaError._AUTO_OFFSET_RESET:
                raise KafkaException(m.error())
        elif m is not None:
            batch.append(m)
            if len(batch) < 500:
                continue
        if batch:
            offsets = settle()  # an error ends the program: who starts it again claims again
            batch.clear()
            consumer.commit(offsets=offsets, asynchronous=True)  # a hint, for lag displays
    consumer.close()


if __name__ == "__main__":
    sys.exit(main())
