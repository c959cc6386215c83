-- name: AddKey :exec
INSERT INTO keys (id, name, hash, prefix, created_at, last_used, max_sandboxes, max_timeout)
VALUES (?, ?, ?, ?, ?, ?, ?, ?);

-- name: KeyByHash :one
SELECT * FROM keys WHERE hash = ?;

-- name: Keys :many
SELECT * FROM keys ORDER BY created_at, id;

-- name: KeyLastUsed :one
SELECT last_used FROM keys WHERE id = ?;

-- name: TouchKey :exec
UPDATE keys SET last_used = sqlc.arg(at) WHERE id = sqlc.arg(id) AND last_used < sqlc.arg(at);

-- name: DeleteKey :execrows
DELETE FROM keys WHERE id = sqlc.arg(id_or_name) OR name = sqlc.arg(id_or_name);

-- name: PutSandbox :exec
INSERT INTO sandboxes (id, created_at, ended_at, record) VALUES (?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET created_at = excluded.created_at, ended_at = excluded.ended_at, record = excluded.record;

-- name: Sandbox :one
SELECT record FROM sandboxes WHERE id = ?;

-- name: LivingSandboxes :many
SELECT record FROM sandboxes WHERE ended_at = 0 ORDER BY created_at, id;

-- name: EndedSandboxes :many
SELECT record FROM sandboxes WHERE ended_at <> 0 ORDER BY ended_at, id;

-- name: PruneSandboxesBefore :execrows
DELETE FROM sandboxes WHERE ended_at <> 0 AND ended_at < sqlc.arg(ended_before);

-- name: EndedBeyond :many
SELECT id FROM sandboxes WHERE ended_at <> 0 ORDER BY ended_at DESC, id DESC LIMIT -1 OFFSET sqlc.arg(skip);

-- name: DeleteSandbox :exec
DELETE FROM sandboxes WHERE id = ?;

-- name: AddTemplate :exec
INSERT INTO templates (id, name, record) VALUES (?, ?, ?);

-- name: ReplaceTemplate :exec
UPDATE templates SET record = ? WHERE id = ?;

-- name: TemplateByID :one
SELECT record FROM templates WHERE id = ?;

-- name: TemplateByName :one
SELECT record FROM templates WHERE name = ? AND name <> '';

-- name: Templates :many
SELECT record FROM templates ORDER BY name, id;

-- name: DeleteTemplate :exec
DELETE FROM templates WHERE id = ?;
