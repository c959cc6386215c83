-- +goose Up
-- What waits for a person, or waited.
CREATE TABLE holds (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    id         TEXT NOT NULL UNIQUE,
    sandbox_id TEXT NOT NULL,    -- '': of one that is not there yet
    key_id     TEXT NOT NULL,    -- of the sandbox's owner
    state      TEXT NOT NULL,
    ended_at   INTEGER NOT NULL, -- 0: pending
    record     TEXT NOT NULL
);
CREATE INDEX holds_pending ON holds (seq) WHERE ended_at = 0;
CREATE INDEX holds_of_sandbox ON holds (sandbox_id, seq);
CREATE INDEX holds_of_key ON holds (key_id, seq);

-- What answers left.
CREATE TABLE grants (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    id         TEXT NOT NULL UNIQUE,
    sandbox_id TEXT NOT NULL,    -- that it goes with; '': it outlives sandboxes
    until      INTEGER NOT NULL, -- 0: no end
    record     TEXT NOT NULL
);
CREATE INDEX grants_of_sandbox ON grants (sandbox_id) WHERE sandbox_id <> '';

-- Grows with each change of the two, so that processes see each other's.
CREATE TABLE approval_changes (count INTEGER NOT NULL);
INSERT INTO approval_changes (count) VALUES (0);

-- +goose Down
DROP TABLE approval_changes;
DROP TABLE grants;
DROP TABLE holds;
