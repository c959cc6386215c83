-- +goose Up
CREATE TABLE secrets (
    id          TEXT PRIMARY KEY NOT NULL,
    key_id      TEXT NOT NULL,
    name        TEXT NOT NULL,
    version     INTEGER NOT NULL, -- of the value that is used
    placeholder TEXT NOT NULL UNIQUE,
    metadata    TEXT NOT NULL,
    bindings    TEXT NOT NULL,
    created_at  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL,
    UNIQUE (key_id, name)
);

-- Values, encrypted by who writes them.
CREATE TABLE secret_values (
    secret_id  TEXT NOT NULL,
    version    INTEGER NOT NULL,
    ciphertext BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (secret_id, version)
);

-- One row: how often secrets were changed.
CREATE TABLE secret_changes (
    changes INTEGER NOT NULL
);
INSERT INTO secret_changes (changes) VALUES (0);

-- +goose Down
DROP TABLE secret_changes;
DROP TABLE secret_values;
DROP TABLE secrets;
