-- +goose Up
ALTER TABLE keys ADD COLUMN roles         TEXT NOT NULL DEFAULT 'sandboxes'; -- joined by commas, as the next
ALTER TABLE keys ADD COLUMN approves      TEXT NOT NULL DEFAULT '';          -- ids of keys; '': all
ALTER TABLE keys ADD COLUMN self_approval INTEGER NOT NULL DEFAULT 0;

-- +goose Down
DELETE FROM keys WHERE roles NOT LIKE '%sandboxes%'; -- a version without roles would give them sandboxes
ALTER TABLE keys DROP COLUMN self_approval;
ALTER TABLE keys DROP COLUMN approves;
ALTER TABLE keys DROP COLUMN roles;
