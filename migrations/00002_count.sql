-- +goose Up
-- Rows that someone deletes by hand, or that a damaged file loses, leave nothing that could look wrong: only a count that was
-- written with them tells. A program that does not know of it can still write beside one that does, while versions change: the count
-- then is of an older commit, and does not count.
ALTER TABLE disclosured.cursor ADD COLUMN contracts bigint, ADD COLUMN counted_seq bigint;
COMMENT ON COLUMN disclosured.cursor.contracts IS 'How many rows the table contract has of the present generation, as counted by those who wrote them.';
COMMENT ON COLUMN disclosured.cursor.counted_seq IS 'The commit_seq that the count is of. With another one the count says nothing, and is made anew by the next commit.';

-- +goose Down
ALTER TABLE disclosured.cursor DROP COLUMN contracts, DROP COLUMN counted_seq;
