-- +goose Up
-- Rows that someone deletes by hand, or that a damaged file loses, leave nothing that could look wrong: only a count that was
-- written with them tells.
ALTER TABLE disclosured.cursor ADD COLUMN contracts bigint NOT NULL DEFAULT 0;
UPDATE disclosured.cursor SET contracts = (SELECT count(*) FROM disclosured.contract n WHERE n.generation = cursor.generation);
ALTER TABLE disclosured.cursor ALTER COLUMN contracts DROP DEFAULT;
COMMENT ON COLUMN disclosured.cursor.contracts IS 'How many rows the table contract has of the present generation, as counted by those who wrote them.';

-- +goose Down
ALTER TABLE disclosured.cursor DROP COLUMN contracts;
