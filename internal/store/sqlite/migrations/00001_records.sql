-- +goose Up
CREATE TABLE keys (
    id            TEXT PRIMARY KEY NOT NULL,
    name          TEXT NOT NULL UNIQUE,
    hash          TEXT NOT NULL UNIQUE,
    prefix        TEXT NOT NULL,
    created_at    INTEGER NOT NULL,           -- times: microseconds since 1970, UTC
    last_used     INTEGER NOT NULL DEFAULT 0, -- 0: never
    max_sandboxes INTEGER NOT NULL,
    max_timeout   INTEGER NOT NULL DEFAULT 0  -- microseconds; 0: none
);

-- Columns are what records are found by; the rest of a record is one JSON
-- document, so that a new field needs no migration.
CREATE TABLE sandboxes (
    id         TEXT PRIMARY KEY NOT NULL,
    created_at INTEGER NOT NULL,
    ended_at   INTEGER NOT NULL DEFAULT 0, -- 0: lives
    record     TEXT NOT NULL
);
CREATE INDEX sandboxes_ended ON sandboxes (ended_at, created_at);

CREATE TABLE templates (
    id     TEXT PRIMARY KEY NOT NULL,
    name   TEXT NOT NULL,
    record TEXT NOT NULL
);
CREATE UNIQUE INDEX templates_name ON templates (name) WHERE name <> '';

-- +goose Down
DROP TABLE templates;
DROP TABLE sandboxes;
DROP TABLE keys;
