CREATE TABLE IF NOT EXISTS orders (
    id        bigint PRIMARY KEY,
    customer  text NOT NULL,
    total     numeric(12, 2) NOT NULL,
    version   bigint NOT NULL,
    placed_at timestamptz NOT NULL,
    document  jsonb NOT NULL
);
