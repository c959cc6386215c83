-- +goose Up
ALTER TABLE keys ADD COLUMN max_create_rate REAL NOT NULL DEFAULT 0;    -- a second; 0, here and below: no limit
ALTER TABLE keys ADD COLUMN max_cpus        INTEGER NOT NULL DEFAULT 0;
ALTER TABLE keys ADD COLUMN max_memory      INTEGER NOT NULL DEFAULT 0; -- bytes
ALTER TABLE keys ADD COLUMN max_disk        INTEGER NOT NULL DEFAULT 0; -- bytes
ALTER TABLE keys ADD COLUMN max_snapshots   INTEGER NOT NULL DEFAULT 0;

CREATE TABLE events (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT, -- the order in which they were recorded
    at         INTEGER NOT NULL,
    key_id     TEXT NOT NULL,
    sandbox_id TEXT NOT NULL,
    kind       TEXT NOT NULL,
    record     TEXT NOT NULL
);
CREATE INDEX events_of_key ON events (key_id, seq);
CREATE INDEX events_of_sandbox ON events (sandbox_id, seq);

CREATE TABLE webhooks (
    id              TEXT PRIMARY KEY NOT NULL,
    key_id          TEXT NOT NULL,
    name            TEXT NOT NULL,
    url             TEXT NOT NULL,
    secret          TEXT NOT NULL,
    kinds           TEXT NOT NULL, -- of events, a JSON list
    enabled         INTEGER NOT NULL,
    disabled_reason TEXT NOT NULL,
    created_at      INTEGER NOT NULL,
    failures        INTEGER NOT NULL, -- in a row
    failing_since   INTEGER NOT NULL  -- 0: the last one was delivered
);
CREATE INDEX webhooks_of_key ON webhooks (key_id, created_at);

-- The queue and, once a delivery has ended, the log.
CREATE TABLE deliveries (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    id         TEXT NOT NULL UNIQUE,
    webhook_id TEXT NOT NULL,
    event_seq  INTEGER NOT NULL,
    event_id   TEXT NOT NULL,
    kind       TEXT NOT NULL, -- of the event
    sandbox_id TEXT NOT NULL,
    state      TEXT NOT NULL, -- pending, delivered, failed, dropped
    reason     TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    next_at    INTEGER NOT NULL, -- 0: it has ended
    ended_at   INTEGER NOT NULL, -- 0: pending
    tries      INTEGER NOT NULL,
    attempts   TEXT NOT NULL  -- a JSON list
);
CREATE INDEX deliveries_pending ON deliveries (webhook_id, sandbox_id, seq) WHERE state = 'pending';
CREATE INDEX deliveries_due ON deliveries (webhook_id, next_at) WHERE state = 'pending';
CREATE INDEX deliveries_of_webhook ON deliveries (webhook_id, seq);

-- +goose Down
DROP TABLE deliveries;
DROP TABLE webhooks;
DROP TABLE events;
ALTER TABLE keys DROP COLUMN max_snapshots;
ALTER TABLE keys DROP COLUMN max_disk;
ALTER TABLE keys DROP COLUMN max_memory;
ALTER TABLE keys DROP COLUMN max_cpus;
ALTER TABLE keys DROP COLUMN max_create_rate;
