-- +goose Up
-- The rules of one scope each.
CREATE TABLE policies (
    scope      TEXT NOT NULL, -- server, key, template, sandbox
    scope_id   TEXT NOT NULL, -- of the key, template or sandbox; '' for the server
    record     TEXT NOT NULL,
    updated_at INTEGER NOT NULL,
    PRIMARY KEY (scope, scope_id)
);

-- +goose Down
DROP TABLE policies;
