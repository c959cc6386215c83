-- +goose Up
DROP INDEX templates_name;
ALTER TABLE templates RENAME TO named_builds;

CREATE TABLE templates (
    id         TEXT PRIMARY KEY NOT NULL,
    alias      TEXT NOT NULL,    -- '': known by its id only
    key_id     TEXT NOT NULL,    -- '': the machine's
    public     INTEGER NOT NULL,
    created_at INTEGER NOT NULL
);
CREATE UNIQUE INDEX templates_alias ON templates (alias) WHERE alias <> '';

-- What sandboxes start from. Each has a tag.
CREATE TABLE template_builds (
    id          TEXT PRIMARY KEY NOT NULL,
    template_id TEXT NOT NULL,
    built_at    INTEGER NOT NULL,
    record      TEXT NOT NULL
);
CREATE INDEX template_builds_of ON template_builds (template_id);

CREATE TABLE template_tags (
    template_id TEXT NOT NULL,
    tag         TEXT NOT NULL,
    build_id    TEXT NOT NULL,
    assigned_at INTEGER NOT NULL,
    PRIMARY KEY (template_id, tag)
);
CREATE INDEX template_tags_of_build ON template_tags (build_id);

-- A template with one of its builds, as they are read.
CREATE VIEW templates_flat AS
SELECT t.id, t.alias, t.key_id, t.public, t.created_at, b.id AS build_id, b.built_at, b.record,
       CAST((SELECT json_group_array(g.tag) FROM template_tags g WHERE g.build_id = b.id) AS TEXT) AS tags
FROM templates t JOIN template_builds b ON b.template_id = t.id;

-- The work of building, from the wish to its end.
CREATE TABLE builds (
    id          TEXT PRIMARY KEY NOT NULL,
    template_id TEXT NOT NULL,
    key_id      TEXT NOT NULL,
    alias       TEXT NOT NULL,
    state       TEXT NOT NULL,    -- waiting, building, ready, error
    created_at  INTEGER NOT NULL,
    finished_at INTEGER NOT NULL, -- 0: it has not ended
    record      TEXT NOT NULL
);
CREATE INDEX builds_of_template ON builds (template_id, created_at);
CREATE INDEX builds_of_key ON builds (key_id, created_at);
CREATE INDEX builds_of_alias ON builds (alias) WHERE alias <> '';

CREATE TABLE volumes (
    id         TEXT PRIMARY KEY NOT NULL,
    name       TEXT NOT NULL,
    key_id     TEXT NOT NULL,
    token      TEXT NOT NULL,
    size       INTEGER NOT NULL, -- bytes
    created_at INTEGER NOT NULL,
    UNIQUE (key_id, name)
);

-- Until now each build was a template by itself, named alias or alias:tag. Those of
-- one alias and owner become one template, with the id of the one without a tag if
-- there is one. Of two owners with one alias the machine, else who had it first,
-- keeps it; what the others have is known by its id.
CREATE TABLE moving (
    id          TEXT NOT NULL,
    template_id TEXT NOT NULL,
    alias       TEXT NOT NULL,
    tag         TEXT NOT NULL,
    key_id      TEXT NOT NULL,
    keeper      TEXT NOT NULL, -- who keeps the alias
    created_at  INTEGER NOT NULL,
    built_at    INTEGER NOT NULL,
    record      TEXT NOT NULL
);
INSERT INTO moving (id, template_id, alias, tag, key_id, keeper, created_at, built_at, record)
SELECT id, id, CASE instr(name, ':') WHEN 0 THEN name ELSE substr(name, 1, instr(name, ':') - 1) END,
       CASE instr(name, ':') WHEN 0 THEN 'default' ELSE substr(name, instr(name, ':') + 1) END,
       COALESCE(json_extract(record, '$.keyID'), ''), '',
       MAX(0, CAST(strftime('%s', json_extract(record, '$.createdAt')) AS INTEGER)) * 1000000
           + CAST(substr(strftime('%f', json_extract(record, '$.createdAt')), 4) AS INTEGER) * 1000,
       MAX(0, CAST(strftime('%s', json_extract(record, '$.builtAt')) AS INTEGER)) * 1000000
           + CAST(substr(strftime('%f', json_extract(record, '$.builtAt')), 4) AS INTEGER) * 1000,
       record
FROM named_builds;
UPDATE moving SET keeper = (
    SELECT m.key_id FROM moving m WHERE m.alias = moving.alias ORDER BY m.key_id <> '', m.created_at, m.id LIMIT 1);
UPDATE moving SET alias = '', tag = 'default' WHERE key_id <> keeper;
UPDATE moving SET template_id = (
    SELECT m.id FROM moving m WHERE m.alias = moving.alias ORDER BY m.tag <> 'default', m.created_at, m.id LIMIT 1)
WHERE alias <> '';

INSERT INTO templates (id, alias, key_id, public, created_at)
SELECT template_id, alias, key_id, 0, MIN(created_at) FROM moving GROUP BY template_id;
INSERT INTO template_builds (id, template_id, built_at, record)
SELECT json_extract(record, '$.buildID'), template_id, built_at, record FROM moving;
INSERT INTO template_tags (template_id, tag, build_id, assigned_at)
SELECT template_id, tag, json_extract(record, '$.buildID'), built_at FROM moving;
DROP TABLE moving;
DROP TABLE named_builds;

-- +goose Down
CREATE TABLE named_builds (
    id     TEXT PRIMARY KEY NOT NULL,
    name   TEXT NOT NULL,
    record TEXT NOT NULL
);
INSERT INTO named_builds (id, name, record)
SELECT CASE g.tag WHEN 'default' THEN t.id ELSE lower(hex(randomblob(10))) END,
       CASE WHEN t.alias = '' OR g.tag = 'default' THEN t.alias ELSE t.alias || ':' || g.tag END, b.record
FROM template_tags g JOIN templates t ON t.id = g.template_id JOIN template_builds b ON b.id = g.build_id;
UPDATE named_builds SET record = json_set(record, '$.id', id, '$.name', name);
DROP TABLE volumes;
DROP TABLE builds;
DROP VIEW templates_flat;
DROP TABLE template_tags;
DROP TABLE template_builds;
DROP TABLE templates;
ALTER TABLE named_builds RENAME TO templates;
CREATE UNIQUE INDEX templates_name ON templates (name) WHERE name <> '';
