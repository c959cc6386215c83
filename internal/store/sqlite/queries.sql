-- name: AddKey :exec
INSERT INTO keys (id, name, hash, prefix, created_at, last_used, max_sandboxes, max_timeout,
                  max_create_rate, max_cpus, max_memory, max_disk, max_snapshots, roles, approves, self_approval)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: KeyByID :one
SELECT * FROM keys WHERE id = ?;

-- name: KeyByName :one
SELECT * FROM keys WHERE name = ?;

-- name: UpdateKey :exec
UPDATE keys SET name = ?, max_sandboxes = ?, max_timeout = ?, max_create_rate = ?, max_cpus = ?, max_memory = ?,
                max_disk = ?, max_snapshots = ?, roles = ?, approves = ?, self_approval = ?
WHERE id = ?;

-- name: KeyByHash :one
SELECT * FROM keys WHERE hash = ?;

-- name: Keys :many
SELECT * FROM keys ORDER BY created_at, id;

-- name: KeyLastUsed :one
SELECT last_used FROM keys WHERE id = ?;

-- name: TouchKey :exec
UPDATE keys SET last_used = sqlc.arg(at) WHERE id = sqlc.arg(id) AND last_used < sqlc.arg(at);

-- name: DeleteKey :exec
DELETE FROM keys WHERE id = ?;

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

-- name: PutTemplate :exec
INSERT INTO templates (id, alias, key_id, public, created_at) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (id) DO NOTHING;

-- name: TemplateRow :one
SELECT * FROM templates WHERE id = ?;

-- name: TemplateRowByAlias :one
SELECT * FROM templates WHERE alias = ? AND alias <> '';

-- name: TemplateByTag :one
SELECT f.* FROM template_tags g JOIN templates_flat f ON f.build_id = g.build_id
WHERE g.tag = sqlc.arg(tag) AND g.template_id = COALESCE(
    (SELECT t.id FROM templates t WHERE t.id = sqlc.arg(id_or_alias)),
    (SELECT t.id FROM templates t WHERE t.alias = sqlc.arg(id_or_alias) AND t.alias <> ''));

-- name: SetTemplatePublic :exec
UPDATE templates SET public = ? WHERE id = ?;

-- name: DeleteTemplate :exec
DELETE FROM templates WHERE id = ?;

-- name: PutTemplateBuild :exec
INSERT INTO template_builds (id, template_id, built_at, record) VALUES (?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET built_at = excluded.built_at, record = excluded.record;

-- name: DeleteTemplateBuild :exec
DELETE FROM template_builds WHERE id = ?;

-- name: PutTag :exec
INSERT INTO template_tags (template_id, tag, build_id, assigned_at) VALUES (?, ?, ?, ?)
ON CONFLICT (template_id, tag) DO UPDATE SET build_id = excluded.build_id, assigned_at = excluded.assigned_at;

-- name: Tag :one
SELECT * FROM template_tags WHERE template_id = ? AND tag = ?;

-- name: TagsOfTemplate :many
SELECT * FROM template_tags WHERE template_id = ? ORDER BY assigned_at DESC, tag;

-- name: DeleteTag :exec
DELETE FROM template_tags WHERE template_id = ? AND tag = ?;

-- name: Templates :many
SELECT * FROM templates_flat ORDER BY alias, id, built_at DESC, build_id;

-- name: TemplateBuild :one
SELECT * FROM templates_flat WHERE build_id = ?;

-- name: BuildsOfTemplate :many
SELECT * FROM templates_flat WHERE id = ? ORDER BY built_at DESC, build_id;

-- name: AddBuild :exec
INSERT INTO builds (id, template_id, key_id, alias, state, created_at, finished_at, record)
VALUES (?, ?, ?, ?, ?, ?, ?, ?);

-- name: UpdateBuild :exec
UPDATE builds SET state = ?, finished_at = ?, record = ? WHERE id = ?;

-- name: Build :one
SELECT record FROM builds WHERE id = ?;

-- name: BuildOfAlias :one
SELECT record FROM builds
WHERE alias = sqlc.arg(alias) AND alias <> '' AND (finished_at = 0 OR key_id = sqlc.arg(key_id))
ORDER BY finished_at <> 0, created_at DESC, id LIMIT 1;

-- name: Builds :many
SELECT record FROM builds
WHERE (CAST(sqlc.arg(template_id) AS TEXT) = '' OR template_id = sqlc.arg(template_id))
  AND (CAST(sqlc.arg(key_id) AS TEXT) = '' OR key_id = sqlc.arg(key_id))
  AND (CAST(sqlc.arg(states) AS TEXT) = '[]' OR state IN (SELECT value FROM json_each(sqlc.arg(states))))
ORDER BY created_at, id LIMIT sqlc.arg(most) OFFSET sqlc.arg(skip);

-- name: BuildsNewestFirst :many
SELECT record FROM builds
WHERE (CAST(sqlc.arg(template_id) AS TEXT) = '' OR template_id = sqlc.arg(template_id))
  AND (CAST(sqlc.arg(key_id) AS TEXT) = '' OR key_id = sqlc.arg(key_id))
  AND (CAST(sqlc.arg(states) AS TEXT) = '[]' OR state IN (SELECT value FROM json_each(sqlc.arg(states))))
ORDER BY created_at DESC, id DESC LIMIT sqlc.arg(most) OFFSET sqlc.arg(skip);

-- name: DeleteBuild :exec
DELETE FROM builds WHERE id = ?;

-- name: DeleteBuildsOf :execrows
DELETE FROM builds WHERE template_id = ?;

-- name: DeleteFinishedBuildsOf :exec
DELETE FROM builds WHERE template_id = ? AND finished_at <> 0;

-- name: PrunableBuilds :many
SELECT id FROM builds b WHERE b.finished_at <> 0 AND (b.finished_at < sqlc.arg(before) OR (
    SELECT COUNT(*) FROM builds n WHERE n.template_id = b.template_id AND n.finished_at <> 0
      AND (n.finished_at, n.id) > (b.finished_at, b.id)) >= CAST(sqlc.arg(keep) AS INTEGER))
ORDER BY id;

-- name: AddVolume :exec
INSERT INTO volumes (id, name, key_id, token, size, created_at) VALUES (?, ?, ?, ?, ?, ?);

-- name: VolumeByID :one
SELECT * FROM volumes WHERE id = ?;

-- name: VolumeByName :one
SELECT * FROM volumes WHERE key_id = ? AND name = ?;

-- name: AllVolumes :many
SELECT * FROM volumes ORDER BY created_at, id;

-- name: VolumesOfKey :many
SELECT * FROM volumes WHERE key_id = ? ORDER BY created_at, id;

-- name: DeleteVolume :execrows
DELETE FROM volumes WHERE id = ?;

-- name: AddEvent :one
INSERT INTO events (at, key_id, sandbox_id, kind, record) VALUES (?, ?, ?, ?, ?) RETURNING seq;

-- name: Events :many
SELECT * FROM events
WHERE key_id = sqlc.arg(key_id) AND (CAST(sqlc.arg(sandbox_id) AS TEXT) = '' OR sandbox_id = sqlc.arg(sandbox_id))
  AND (CAST(sqlc.arg(kinds) AS TEXT) = '[]' OR kind IN (SELECT value FROM json_each(sqlc.arg(kinds))))
ORDER BY seq LIMIT sqlc.arg(most) OFFSET sqlc.arg(skip);

-- name: EventsNewestFirst :many
SELECT * FROM events
WHERE key_id = sqlc.arg(key_id) AND (CAST(sqlc.arg(sandbox_id) AS TEXT) = '' OR sandbox_id = sqlc.arg(sandbox_id))
  AND (CAST(sqlc.arg(kinds) AS TEXT) = '[]' OR kind IN (SELECT value FROM json_each(sqlc.arg(kinds))))
ORDER BY seq DESC LIMIT sqlc.arg(most) OFFSET sqlc.arg(skip);

-- name: KeysWithEvents :many
SELECT DISTINCT key_id FROM events;

-- name: EventBefore :one
SELECT CAST(COALESCE(MAX(seq), 0) AS INTEGER) FROM events WHERE key_id = ? AND at < ?;

-- name: EventBeyond :one
SELECT seq FROM events WHERE key_id = ? ORDER BY seq DESC LIMIT 1 OFFSET sqlc.arg(skip);

-- name: EventSizes :many
SELECT seq, CAST(LENGTH(record) AS INTEGER) AS size FROM events WHERE key_id = ? ORDER BY seq DESC;

-- name: PruneEvents :execrows
DELETE FROM events WHERE seq IN (SELECT e.seq FROM events e WHERE e.key_id = ? AND e.seq <= sqlc.arg(last) ORDER BY e.seq LIMIT sqlc.arg(most));

-- name: AddWebhook :exec
INSERT INTO webhooks (id, key_id, name, url, secret, kinds, enabled, disabled_reason, created_at, failures, failing_since)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: UpdateWebhook :exec
UPDATE webhooks SET name = ?, url = ?, secret = ?, kinds = ?, enabled = ?, disabled_reason = ?, failures = ?, failing_since = ?
WHERE id = ?;

-- name: Webhook :one
SELECT * FROM webhooks WHERE id = ?;

-- name: AllWebhooks :many
SELECT * FROM webhooks ORDER BY created_at, id;

-- name: WebhooksOfKey :many
SELECT * FROM webhooks WHERE key_id = ? ORDER BY created_at, id;

-- name: DeleteWebhook :execrows
DELETE FROM webhooks WHERE id = ?;

-- name: DeleteDeliveriesOf :exec
DELETE FROM deliveries WHERE webhook_id = ?;

-- name: WebhooksDue :many
SELECT * FROM webhooks w
WHERE w.enabled <> 0
  AND EXISTS (SELECT 1 FROM deliveries d WHERE d.webhook_id = w.id AND d.state = 'pending' AND d.next_at <= sqlc.arg(now))
ORDER BY w.created_at, w.id;

-- name: AddDelivery :exec
INSERT INTO deliveries (id, webhook_id, event_seq, event_id, kind, sandbox_id, state, reason, created_at, next_at, ended_at, tries, attempts)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: Delivery :one
SELECT * FROM deliveries WHERE id = ?;

-- name: Deliveries :many
SELECT * FROM deliveries
WHERE webhook_id = sqlc.arg(webhook_id) AND (CAST(sqlc.arg(before) AS INTEGER) = 0 OR seq < sqlc.arg(before))
  AND (CAST(sqlc.arg(states) AS TEXT) = '[]' OR state IN (SELECT value FROM json_each(sqlc.arg(states))))
  AND (CAST(sqlc.arg(kinds) AS TEXT) = '[]' OR kind IN (SELECT value FROM json_each(sqlc.arg(kinds))))
ORDER BY seq DESC LIMIT sqlc.arg(most);

-- name: UpdateDelivery :exec
UPDATE deliveries SET state = ?, reason = ?, next_at = ?, ended_at = ?, tries = ?, attempts = ? WHERE id = ?;

-- name: DueDeliveries :many
SELECT d.* FROM deliveries d
WHERE d.webhook_id = sqlc.arg(webhook_id) AND d.state = 'pending' AND d.next_at <= sqlc.arg(now)
  AND NOT EXISTS (SELECT 1 FROM deliveries e WHERE e.webhook_id = d.webhook_id AND e.sandbox_id = d.sandbox_id
                  AND e.seq < d.seq AND e.state = 'pending' AND e.tries < sqlc.arg(ordered_tries))
ORDER BY d.next_at, d.seq LIMIT sqlc.arg(most);

-- name: NextDelivery :one
SELECT CAST(COALESCE(MIN(soonest), 0) AS INTEGER) FROM (
    SELECT (SELECT MIN(d.next_at) FROM deliveries d
            WHERE d.webhook_id = w.id AND d.state = 'pending' AND d.next_at > sqlc.arg(now)) AS soonest
    FROM webhooks w WHERE w.enabled <> 0);

-- name: EventBySeq :one
SELECT * FROM events WHERE seq = ?;

-- name: DropDeliveriesWithoutEvent :exec
UPDATE deliveries SET state = 'dropped', reason = sqlc.arg(reason), next_at = 0, ended_at = sqlc.arg(now)
WHERE state = 'pending' AND event_seq NOT IN (SELECT e.seq FROM events e);

-- name: DeliveryBeyond :one
SELECT seq FROM deliveries WHERE webhook_id = ? AND state <> 'pending' ORDER BY seq DESC LIMIT 1 OFFSET sqlc.arg(skip);

-- name: PruneDeliveries :execrows
DELETE FROM deliveries WHERE seq IN (
    SELECT d.seq FROM deliveries d
    WHERE d.webhook_id = sqlc.arg(webhook_id) AND d.state <> 'pending' AND (d.seq <= sqlc.arg(last) OR d.ended_at < sqlc.arg(before))
    ORDER BY d.seq LIMIT sqlc.arg(most));

-- name: AddHold :exec
INSERT INTO holds (id, sandbox_id, key_id, state, ended_at, record) VALUES (?, ?, ?, ?, ?, ?);

-- name: Hold :one
SELECT * FROM holds WHERE id = ?;

-- name: Holds :many
SELECT * FROM holds
WHERE (CAST(sqlc.arg(sandbox_id) AS TEXT) = '' OR sandbox_id = sqlc.arg(sandbox_id))
  AND (CAST(sqlc.arg(key_id) AS TEXT) = '' OR key_id = sqlc.arg(key_id))
  AND (CAST(sqlc.arg(states) AS TEXT) = '[]' OR state IN (SELECT value FROM json_each(sqlc.arg(states))))
  AND (CAST(sqlc.arg(before) AS TEXT) = '' OR seq < (SELECT b.seq FROM holds b WHERE b.id = sqlc.arg(before)))
ORDER BY seq DESC LIMIT sqlc.arg(most);

-- name: PendingHolds :many
SELECT * FROM holds WHERE ended_at = 0 ORDER BY seq;

-- name: UpdateHold :execrows
UPDATE holds SET state = ?, ended_at = ?, record = ? WHERE id = ? AND ended_at = 0;

-- name: SandboxesWithHolds :many
SELECT sandbox_id FROM holds WHERE ended_at <> 0 GROUP BY sandbox_id;

-- name: HoldBeyond :one
SELECT seq FROM holds WHERE sandbox_id = ? AND ended_at <> 0 ORDER BY seq DESC LIMIT 1 OFFSET sqlc.arg(skip);

-- name: PruneHolds :execrows
DELETE FROM holds WHERE seq IN (
    SELECT h.seq FROM holds h
    WHERE h.sandbox_id = sqlc.arg(sandbox_id) AND h.ended_at <> 0 AND (h.seq <= sqlc.arg(last) OR h.ended_at < sqlc.arg(before))
    ORDER BY h.seq LIMIT sqlc.arg(most));

-- name: AddGrant :exec
INSERT INTO grants (id, sandbox_id, until, record) VALUES (?, ?, ?, ?);

-- name: Grants :many
SELECT * FROM grants ORDER BY seq;

-- name: DeleteGrant :execrows
DELETE FROM grants WHERE id = ?;

-- name: DeleteGrantsOf :execrows
DELETE FROM grants WHERE sandbox_id = ?;

-- name: PruneGrants :execrows
DELETE FROM grants WHERE until <> 0 AND until <= ?;

-- name: ApprovalsChanged :exec
UPDATE approval_changes SET count = count + 1;

-- name: ApprovalChanges :one
SELECT count FROM approval_changes;

-- name: PutPolicy :exec
INSERT INTO policies (scope, scope_id, record, updated_at) VALUES (?, ?, ?, ?)
ON CONFLICT (scope, scope_id) DO UPDATE SET record = excluded.record, updated_at = excluded.updated_at;

-- name: Policies :many
SELECT * FROM policies
ORDER BY CASE scope WHEN 'server' THEN 0 WHEN 'key' THEN 1 WHEN 'template' THEN 2 ELSE 3 END, scope_id;

-- name: DeletePolicy :execrows
DELETE FROM policies WHERE scope = ? AND scope_id = ?;

-- name: DeletePoliciesBut :exec
DELETE FROM policies WHERE scope <> ?;

-- name: DeleteOrphanedPolicies :exec
DELETE FROM policies
WHERE (scope = 'key' AND scope_id NOT IN (SELECT k.id FROM keys k)
       AND scope_id NOT IN (SELECT b.key_id FROM builds b WHERE b.finished_at = 0)
       AND scope_id NOT IN (SELECT COALESCE(json_extract(s.record, '$.keyID'), '') FROM sandboxes s WHERE s.ended_at = 0))
   OR (scope = 'template' AND scope_id NOT IN (SELECT t.id FROM templates t)
       AND scope_id NOT IN (SELECT b.template_id FROM builds b WHERE b.finished_at = 0)
       AND scope_id NOT IN (SELECT COALESCE(json_extract(s.record, '$.templateID'), '') FROM sandboxes s WHERE s.ended_at = 0))
   OR (scope = 'sandbox' AND scope_id IN (SELECT s.id FROM sandboxes s WHERE s.ended_at <> 0));

-- name: AddSecret :exec
INSERT INTO secrets (id, key_id, name, version, placeholder, metadata, bindings, created_at, updated_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: CountSecretsOfKey :one
SELECT COUNT(*) FROM secrets WHERE key_id = ?;

-- name: SecretByID :one
SELECT * FROM secrets WHERE key_id = ? AND id = ?;

-- name: SecretByName :one
SELECT * FROM secrets WHERE key_id = ? AND name = ?;

-- name: AllSecrets :many
SELECT * FROM secrets ORDER BY created_at, id;

-- name: SecretsOfKey :many
SELECT * FROM secrets WHERE key_id = ? ORDER BY created_at, id;

-- name: UpdateSecret :exec
UPDATE secrets SET version = ?, metadata = ?, bindings = ?, updated_at = ? WHERE id = ?;

-- name: DeleteSecret :exec
DELETE FROM secrets WHERE id = ?;

-- name: PutSecretValue :exec
INSERT OR REPLACE INTO secret_values (secret_id, version, ciphertext, created_at) VALUES (?, ?, ?, ?);

-- name: SecretValues :many
SELECT * FROM secret_values WHERE secret_id = ? ORDER BY version DESC;

-- name: AllSecretValues :many
SELECT * FROM secret_values ORDER BY secret_id, version DESC;

-- name: DeleteSecretValues :exec
DELETE FROM secret_values WHERE secret_id = ?;

-- name: SecretChanges :one
SELECT changes FROM secret_changes;

-- name: CountSecretChange :exec
UPDATE secret_changes SET changes = changes + 1;
