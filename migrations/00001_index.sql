-- +goose Up

-- The index of one participant's ledger. Everything that is present belongs to the generation that the cursor names; what
-- history tells belongs to the history that the cursor names. See the comments on the tables. Rows that name a scope have no
-- foreign key to it: the dictionary only grows, and a seed writes hundreds of thousands of rows.

CREATE TABLE disclosured.lease (
    role       text        COLLATE "C" NOT NULL,
    epoch      bigint      NOT NULL,
    holder     text        COLLATE "C" NOT NULL,
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (role)
);
-- A unique index over role and epoch makes a change of epoch a change of key: a writer's FOR KEY SHARE lock on
-- its lease row then holds off a new holder, and lets its own renewals pass.
CREATE UNIQUE INDEX lease_role_epoch ON disclosured.lease (role, epoch);
INSERT INTO disclosured.lease (role, epoch, holder, expires_at) VALUES ('writer', 0, '', 'epoch');
COMMENT ON TABLE disclosured.lease IS 'Who may write: one row per role, of which there is one, ''writer''. A lease is held until expires_at by this database''s clock; its epoch fences the commits of everyone who held it before.';
COMMENT ON COLUMN disclosured.lease.role IS 'What is leased: writer.';
COMMENT ON COLUMN disclosured.lease.epoch IS 'Grows by one with each change of holder. A commit carries the epoch of its writer and has no effect once it is not this one.';
COMMENT ON COLUMN disclosured.lease.holder IS 'Name of the process that holds the lease; empty when it was released.';
COMMENT ON COLUMN disclosured.lease.expires_at IS 'Until when the lease holds, by this database''s clock, unless it is renewed.';

CREATE TABLE disclosured.generation (
    generation     bigint      GENERATED ALWAYS AS IDENTITY,
    state          text        COLLATE "C" NOT NULL CHECK (state IN ('building', 'present', 'retired')),
    epoch          bigint      NOT NULL,
    participant_id text        COLLATE "C" NOT NULL,
    seed_offset    bigint      NOT NULL,
    filter         text        COLLATE "C" NOT NULL,
    reason         text        COLLATE "C" NOT NULL,
    started_at     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (generation)
);
COMMENT ON TABLE disclosured.generation IS 'The generations of the index: each is one building of it from a snapshot. One is present (the cursor names it); rows of retired ones are deleted in the background.';
COMMENT ON COLUMN disclosured.generation.generation IS 'Number of the generation; later ones are greater.';
COMMENT ON COLUMN disclosured.generation.state IS 'building: being written beside the present one; present: served; retired: replaced or given up, to be deleted.';
COMMENT ON COLUMN disclosured.generation.epoch IS 'The lease''s epoch of the writer that began it.';
COMMENT ON COLUMN disclosured.generation.participant_id IS 'The participant whose snapshot it is built from.';
COMMENT ON COLUMN disclosured.generation.seed_offset IS 'The ledger offset of that snapshot.';
COMMENT ON COLUMN disclosured.generation.filter IS 'What was asked of the participant: a name for its parties and templates, opaque.';
COMMENT ON COLUMN disclosured.generation.reason IS 'Why the index was built anew.';
COMMENT ON COLUMN disclosured.generation.started_at IS 'When the building began.';

CREATE TABLE disclosured.cursor (
    singleton      boolean     NOT NULL DEFAULT true CHECK (singleton),
    participant_id text        COLLATE "C" NOT NULL,
    ledger_offset  bigint      NOT NULL,
    update_offset  bigint      NOT NULL,
    update_id      text        COLLATE "C" NOT NULL,
    record_time    timestamptz,
    filter         text        COLLATE "C" NOT NULL,
    generation     bigint      NOT NULL REFERENCES disclosured.generation (generation),
    epoch          bigint      NOT NULL,
    commit_seq     bigint      NOT NULL,
    changes_since  bigint      NOT NULL,
    history        bigint      NOT NULL,
    history_since  bigint      NOT NULL,
    seed_reason    text        COLLATE "C" NOT NULL,
    seeded_at      timestamptz NOT NULL,
    committed_at   timestamptz NOT NULL,
    PRIMARY KEY (singleton)
);
COMMENT ON TABLE disclosured.cursor IS 'The index''s place on the ledger: one row once the index was seeded, none before. It moves in the same transaction as the rows that it speaks of.';
COMMENT ON COLUMN disclosured.cursor.singleton IS 'Always true: there is one row.';
COMMENT ON COLUMN disclosured.cursor.participant_id IS 'The participant whose offsets these are. Offsets mean nothing on another.';
COMMENT ON COLUMN disclosured.cursor.ledger_offset IS 'The ledger offset up to which the index is complete.';
COMMENT ON COLUMN disclosured.cursor.update_offset IS 'Offset of the last update that was applied; 0 where none was.';
COMMENT ON COLUMN disclosured.cursor.update_id IS 'Id of that update; empty where there is none.';
COMMENT ON COLUMN disclosured.cursor.record_time IS 'Record time of that update.';
COMMENT ON COLUMN disclosured.cursor.filter IS 'What was asked of the participant in the present generation, as in the table generation.';
COMMENT ON COLUMN disclosured.cursor.generation IS 'The present generation.';
COMMENT ON COLUMN disclosured.cursor.epoch IS 'Epoch of the writer that may move this row.';
COMMENT ON COLUMN disclosured.cursor.commit_seq IS 'Number of commits so far. Each row carries the number of the commit that wrote it; a seed''s rows carry 0.';
COMMENT ON COLUMN disclosured.cursor.changes_since IS 'The commit sequence from which on every change can still be read; a follower that stands before it loads anew.';
COMMENT ON COLUMN disclosured.cursor.history IS 'The present history: rows of history tables with another number are of a ledger that no longer counts.';
COMMENT ON COLUMN disclosured.cursor.history_since IS 'The ledger offset after which history is complete.';
COMMENT ON COLUMN disclosured.cursor.seed_reason IS 'Why the present generation was seeded.';
COMMENT ON COLUMN disclosured.cursor.seeded_at IS 'When the present generation took its place.';
COMMENT ON COLUMN disclosured.cursor.committed_at IS 'When this row last moved.';

CREATE TABLE disclosured.scope (
    id           bigint  GENERATED ALWAYS AS IDENTITY,
    key          bytea   NOT NULL,
    package_name text    COLLATE "C" NOT NULL,
    operator     text    COLLATE "C" NOT NULL,
    consumer     text    COLLATE "C" NOT NULL,
    namespace    text    COLLATE "C",
    depth        integer NOT NULL CHECK (depth BETWEEN 0 AND 63),
    PRIMARY KEY (id),
    UNIQUE (key)
);
COMMENT ON TABLE disclosured.scope IS 'Dictionary of replay scopes: whose digests a trie holds, under which operator, in which namespace. Shared by all generations; a row is never changed but for its depth.';
COMMENT ON COLUMN disclosured.scope.id IS 'Number of the scope.';
COMMENT ON COLUMN disclosured.scope.key IS 'SHA-256 of the four parts, so that no length of theirs can break an index.';
COMMENT ON COLUMN disclosured.scope.package_name IS 'Name of the package, as wormhole-core.';
COMMENT ON COLUMN disclosured.scope.operator IS 'Party of the core bridge''s operator.';
COMMENT ON COLUMN disclosured.scope.consumer IS 'Party whose replay scope it is.';
COMMENT ON COLUMN disclosured.scope.namespace IS 'Namespace; null where the package version has none, which is another scope than the empty namespace.';
COMMENT ON COLUMN disclosured.scope.depth IS 'The greatest length of a prefix that any node of the scope ever had.';

CREATE TABLE disclosured.contract (
    generation           bigint      NOT NULL,
    commit_seq           bigint      NOT NULL,
    contract_id          text        COLLATE "C" NOT NULL,
    synchronizer_id      text        COLLATE "C" NOT NULL,
    reassignment_counter bigint      NOT NULL,
    in_flight            boolean     NOT NULL,
    target               text        COLLATE "C" NOT NULL,
    class                smallint    NOT NULL,
    package_name         text        COLLATE "C" NOT NULL,
    package_id           text        COLLATE "C" NOT NULL,
    module               text        COLLATE "C" NOT NULL,
    entity               text        COLLATE "C" NOT NULL,
    signatories          text[]      COLLATE "C" NOT NULL,
    observers            text[]      COLLATE "C" NOT NULL,
    created_at           timestamptz,
    ledger_offset        bigint      NOT NULL,
    update_id            text        COLLATE "C" NOT NULL,
    record_time          timestamptz,
    parent_id            text        COLLATE "C" NOT NULL,
    blob_check           smallint    NOT NULL,
    blob_fault           text        NOT NULL,
    kind                 text        COLLATE "C" NOT NULL,
    scope_id             bigint,
    prefix               text        COLLATE "C",
    split_threshold      bigint,
    consumed_count       integer,
    consumed             bytea,
    payload              jsonb,
    blob                 bytea,
    PRIMARY KEY (generation, contract_id, synchronizer_id)
);
-- Blobs and digests are random bytes: compressing them costs time and wins nothing. A row that fits a page stays in one piece, which makes
-- reading the whole table one pass over it.
ALTER TABLE disclosured.contract SET (toast_tuple_target = 8160);
ALTER TABLE disclosured.contract ALTER COLUMN blob SET STORAGE EXTERNAL, ALTER COLUMN consumed SET STORAGE EXTERNAL;
-- All nodes of a scope whose prefix is one of a digest's prefixes: the question of every redeem.
CREATE INDEX contract_covering ON disclosured.contract (generation, scope_id, prefix) WHERE scope_id IS NOT NULL;
CREATE INDEX contract_changes ON disclosured.contract (generation, commit_seq) WHERE commit_seq > 0;
COMMENT ON TABLE disclosured.contract IS 'The active contracts, and those in flight between two synchronizers: raw facts, one row per activation.';
COMMENT ON COLUMN disclosured.contract.generation IS 'Generation that the row belongs to.';
COMMENT ON COLUMN disclosured.contract.commit_seq IS 'Commit that wrote the row; 0 where the seed did.';
COMMENT ON COLUMN disclosured.contract.contract_id IS 'Contract id in lowercase hex.';
COMMENT ON COLUMN disclosured.contract.synchronizer_id IS 'Synchronizer on which the activation holds; in flight, the one that was left.';
COMMENT ON COLUMN disclosured.contract.reassignment_counter IS '0 at creation, one more with each reassignment. An unsigned number of 64 bits in two''s complement.';
COMMENT ON COLUMN disclosured.contract.in_flight IS 'True between unassignment and assignment, when the contract is active nowhere.';
COMMENT ON COLUMN disclosured.contract.target IS 'In flight: the synchronizer that it is bound for; else empty.';
COMMENT ON COLUMN disclosured.contract.class IS 'What the writer''s policy made of the contract: 1 authentic, 2 unpinned, 3 shadow, 4 puppet, 5 malformed, 6 refused. Decided anew at each load.';
COMMENT ON COLUMN disclosured.contract.package_name IS 'Name of the template''s package.';
COMMENT ON COLUMN disclosured.contract.package_id IS 'Id of the package of the contract''s creation.';
COMMENT ON COLUMN disclosured.contract.module IS 'Module of the template.';
COMMENT ON COLUMN disclosured.contract.entity IS 'Name of the template in its module.';
COMMENT ON COLUMN disclosured.contract.signatories IS 'Signatories, sorted.';
COMMENT ON COLUMN disclosured.contract.observers IS 'Observers, sorted.';
COMMENT ON COLUMN disclosured.contract.created_at IS 'Ledger time of the contract''s creation; it survives reassignment.';
COMMENT ON COLUMN disclosured.contract.ledger_offset IS 'Ledger offset of the last activation.';
COMMENT ON COLUMN disclosured.contract.update_id IS 'Id of the activating update; empty where a snapshot did not tell.';
COMMENT ON COLUMN disclosured.contract.record_time IS 'Record time of the activating update; null where a snapshot did not tell.';
COMMENT ON COLUMN disclosured.contract.parent_id IS 'Contract id of the node that the activating update archived in favour of this one; empty where none or unknown.';
COMMENT ON COLUMN disclosured.contract.blob_check IS 'What recomputing the contract id from the blob showed: 0 unchecked, 1 verified, 2 unverifiable, 3 mismatch, 4 missing.';
COMMENT ON COLUMN disclosured.contract.blob_fault IS 'What was wrong with the blob, in words.';
COMMENT ON COLUMN disclosured.contract.kind IS 'Which of the columns below hold the payload: replay_node has its own, the others are in payload.';
COMMENT ON COLUMN disclosured.contract.scope_id IS 'Replay node: its scope.';
COMMENT ON COLUMN disclosured.contract.prefix IS 'Replay node: its prefix in lowercase hex.';
COMMENT ON COLUMN disclosured.contract.split_threshold IS 'Replay node: how many digests it takes before it splits.';
COMMENT ON COLUMN disclosured.contract.consumed_count IS 'Replay node: how many digests it holds.';
COMMENT ON COLUMN disclosured.contract.consumed IS 'Replay node: the digests that it holds, 32 bytes each, sorted and joined.';
COMMENT ON COLUMN disclosured.contract.payload IS 'The other templates: the contract''s fields.';
COMMENT ON COLUMN disclosured.contract.blob IS 'Created event blob as the participant gave it; null where it was missing.';

CREATE TABLE disclosured.ghost (
    generation           bigint      NOT NULL,
    commit_seq           bigint      NOT NULL,
    contract_id          text        COLLATE "C" NOT NULL,
    synchronizer_id      text        COLLATE "C" NOT NULL,
    reassignment_counter bigint      NOT NULL,
    in_flight            boolean     NOT NULL,
    target               text        COLLATE "C" NOT NULL,
    class                smallint    NOT NULL,
    package_name         text        COLLATE "C" NOT NULL,
    package_id           text        COLLATE "C" NOT NULL,
    module               text        COLLATE "C" NOT NULL,
    entity               text        COLLATE "C" NOT NULL,
    signatories          text[]      COLLATE "C" NOT NULL,
    observers            text[]      COLLATE "C" NOT NULL,
    created_at           timestamptz,
    ledger_offset        bigint      NOT NULL,
    update_id            text        COLLATE "C" NOT NULL,
    record_time          timestamptz,
    parent_id            text        COLLATE "C" NOT NULL,
    blob_check           smallint    NOT NULL,
    blob_fault           text        NOT NULL,
    kind                 text        COLLATE "C" NOT NULL,
    scope_id             bigint,
    prefix               text        COLLATE "C",
    split_threshold      bigint,
    consumed_count       integer,
    consumed             bytea,
    payload              jsonb,
    blob                 bytea,
    PRIMARY KEY (generation, contract_id, synchronizer_id)
);
-- Blobs and digests are random bytes: compressing them costs time and wins nothing. A row that fits a page stays in one piece, which makes
-- reading the whole table one pass over it.
ALTER TABLE disclosured.ghost SET (toast_tuple_target = 8160);
ALTER TABLE disclosured.ghost ALTER COLUMN blob SET STORAGE EXTERNAL, ALTER COLUMN consumed SET STORAGE EXTERNAL;
COMMENT ON TABLE disclosured.ghost IS 'Contracts that a snapshot showed active although the history before it had ended them. Kept for the audit, never served.';
COMMENT ON COLUMN disclosured.ghost.generation IS 'Generation that the row belongs to.';
COMMENT ON COLUMN disclosured.ghost.commit_seq IS 'Commit that wrote the row; 0 where the seed did.';
COMMENT ON COLUMN disclosured.ghost.contract_id IS 'Contract id in lowercase hex.';
COMMENT ON COLUMN disclosured.ghost.synchronizer_id IS 'Synchronizer on which the activation holds; in flight, the one that was left.';
COMMENT ON COLUMN disclosured.ghost.reassignment_counter IS '0 at creation, one more with each reassignment. An unsigned number of 64 bits in two''s complement.';
COMMENT ON COLUMN disclosured.ghost.in_flight IS 'True between unassignment and assignment, when the contract is active nowhere.';
COMMENT ON COLUMN disclosured.ghost.target IS 'In flight: the synchronizer that it is bound for; else empty.';
COMMENT ON COLUMN disclosured.ghost.class IS 'What the writer''s policy made of the contract: 1 authentic, 2 unpinned, 3 shadow, 4 puppet, 5 malformed, 6 refused. Decided anew at each load.';
COMMENT ON COLUMN disclosured.ghost.package_name IS 'Name of the template''s package.';
COMMENT ON COLUMN disclosured.ghost.package_id IS 'Id of the package of the contract''s creation.';
COMMENT ON COLUMN disclosured.ghost.module IS 'Module of the template.';
COMMENT ON COLUMN disclosured.ghost.entity IS 'Name of the template in its module.';
COMMENT ON COLUMN disclosured.ghost.signatories IS 'Signatories, sorted.';
COMMENT ON COLUMN disclosured.ghost.observers IS 'Observers, sorted.';
COMMENT ON COLUMN disclosured.ghost.created_at IS 'Ledger time of the contract''s creation; it survives reassignment.';
COMMENT ON COLUMN disclosured.ghost.ledger_offset IS 'Ledger offset of the last activation.';
COMMENT ON COLUMN disclosured.ghost.update_id IS 'Id of the activating update; empty where a snapshot did not tell.';
COMMENT ON COLUMN disclosured.ghost.record_time IS 'Record time of the activating update; null where a snapshot did not tell.';
COMMENT ON COLUMN disclosured.ghost.parent_id IS 'Contract id of the node that the activating update archived in favour of this one; empty where none or unknown.';
COMMENT ON COLUMN disclosured.ghost.blob_check IS 'What recomputing the contract id from the blob showed: 0 unchecked, 1 verified, 2 unverifiable, 3 mismatch, 4 missing.';
COMMENT ON COLUMN disclosured.ghost.blob_fault IS 'What was wrong with the blob, in words.';
COMMENT ON COLUMN disclosured.ghost.kind IS 'Which of the columns below hold the payload: replay_node has its own, the others are in payload.';
COMMENT ON COLUMN disclosured.ghost.scope_id IS 'Replay node: its scope.';
COMMENT ON COLUMN disclosured.ghost.prefix IS 'Replay node: its prefix in lowercase hex.';
COMMENT ON COLUMN disclosured.ghost.split_threshold IS 'Replay node: how many digests it takes before it splits.';
COMMENT ON COLUMN disclosured.ghost.consumed_count IS 'Replay node: how many digests it holds.';
COMMENT ON COLUMN disclosured.ghost.consumed IS 'Replay node: the digests that it holds, 32 bytes each, sorted and joined.';
COMMENT ON COLUMN disclosured.ghost.payload IS 'The other templates: the contract''s fields.';
COMMENT ON COLUMN disclosured.ghost.blob IS 'Created event blob as the participant gave it; null where it was missing.';

CREATE TABLE disclosured.removal (
    generation      bigint NOT NULL,
    commit_seq      bigint NOT NULL,
    contract_id     text   COLLATE "C" NOT NULL,
    synchronizer_id text   COLLATE "C" NOT NULL,
    PRIMARY KEY (generation, commit_seq, contract_id, synchronizer_id)
);
COMMENT ON TABLE disclosured.removal IS 'Keys that left the contract table, so that a follower can take part in the change.';
COMMENT ON COLUMN disclosured.removal.generation IS 'Generation that it left.';
COMMENT ON COLUMN disclosured.removal.commit_seq IS 'Commit that removed it.';
COMMENT ON COLUMN disclosured.removal.contract_id IS 'Contract id in lowercase hex.';
COMMENT ON COLUMN disclosured.removal.synchronizer_id IS 'Synchronizer on which it was active.';

CREATE TABLE disclosured.known_scope (
    generation bigint NOT NULL,
    commit_seq bigint NOT NULL,
    scope_id   bigint NOT NULL,
    PRIMARY KEY (generation, scope_id)
);
COMMENT ON TABLE disclosured.known_scope IS 'Scopes that exist in a generation, although no active node may be left in them.';
COMMENT ON COLUMN disclosured.known_scope.generation IS 'Generation.';
COMMENT ON COLUMN disclosured.known_scope.commit_seq IS 'Commit that made it known.';
COMMENT ON COLUMN disclosured.known_scope.scope_id IS 'The scope.';

CREATE TABLE disclosured.missing_digest (
    generation  bigint NOT NULL,
    commit_seq  bigint NOT NULL,
    scope_id    bigint NOT NULL,
    digest      bytea  NOT NULL,
    removed_seq bigint,
    PRIMARY KEY (generation, scope_id, digest)
);
COMMENT ON TABLE disclosured.missing_digest IS 'Digests that a trie once held and no active node holds: what remains of them under an active node could be consumed again.';
COMMENT ON COLUMN disclosured.missing_digest.generation IS 'Generation.';
COMMENT ON COLUMN disclosured.missing_digest.commit_seq IS 'Commit that last found it missing.';
COMMENT ON COLUMN disclosured.missing_digest.scope_id IS 'Scope of the trie.';
COMMENT ON COLUMN disclosured.missing_digest.digest IS 'The digest, 32 bytes.';
COMMENT ON COLUMN disclosured.missing_digest.removed_seq IS 'Commit since which it is not missing; null while it is.';

CREATE TABLE disclosured.consume (
    history       bigint NOT NULL,
    generation    bigint NOT NULL,
    commit_seq    bigint NOT NULL,
    scope_id      bigint NOT NULL,
    digest        bytea  NOT NULL,
    ledger_offset bigint NOT NULL,
    update_id     text   COLLATE "C" NOT NULL,
    record_time   timestamptz,
    PRIMARY KEY (history, scope_id, digest, ledger_offset)
);
CREATE INDEX consume_by_offset ON disclosured.consume (history, ledger_offset);
COMMENT ON TABLE disclosured.consume IS 'History: the update that put a digest into a trie.';
COMMENT ON COLUMN disclosured.consume.history IS 'History that it belongs to.';
COMMENT ON COLUMN disclosured.consume.generation IS 'Generation in which it was seen.';
COMMENT ON COLUMN disclosured.consume.commit_seq IS 'Commit that wrote it.';
COMMENT ON COLUMN disclosured.consume.scope_id IS 'Scope of the trie.';
COMMENT ON COLUMN disclosured.consume.digest IS 'The digest, 32 bytes.';
COMMENT ON COLUMN disclosured.consume.ledger_offset IS 'Ledger offset of the update.';
COMMENT ON COLUMN disclosured.consume.update_id IS 'Id of the update.';
COMMENT ON COLUMN disclosured.consume.record_time IS 'Record time of the update.';

CREATE TABLE disclosured.ended (
    history       bigint   NOT NULL,
    generation    bigint   NOT NULL,
    commit_seq    bigint   NOT NULL,
    contract_id   text     COLLATE "C" NOT NULL,
    how           smallint NOT NULL,
    after_offset  bigint   NOT NULL,
    ledger_offset bigint   NOT NULL,
    update_id     text     COLLATE "C" NOT NULL,
    record_time   timestamptz,
    since         timestamptz,
    successors    jsonb    NOT NULL,
    scope_id      bigint,
    prefix        text     COLLATE "C",
    PRIMARY KEY (history, contract_id, ledger_offset)
);
CREATE INDEX ended_by_offset ON disclosured.ended (history, ledger_offset);
CREATE INDEX ended_by_prefix ON disclosured.ended (history, scope_id, prefix, ledger_offset) WHERE scope_id IS NOT NULL;
COMMENT ON TABLE disclosured.ended IS 'History: how contracts ended.';
COMMENT ON COLUMN disclosured.ended.history IS 'History that it belongs to.';
COMMENT ON COLUMN disclosured.ended.generation IS 'Generation in which it was seen.';
COMMENT ON COLUMN disclosured.ended.commit_seq IS 'Commit that wrote it.';
COMMENT ON COLUMN disclosured.ended.contract_id IS 'Contract id in lowercase hex.';
COMMENT ON COLUMN disclosured.ended.how IS '1 superseded, 2 split, 3 archived with nothing in its place, 4 purged from this participant, 5 gone between two generations, unseen.';
COMMENT ON COLUMN disclosured.ended.after_offset IS 'The contract ended after this ledger offset';
COMMENT ON COLUMN disclosured.ended.ledger_offset IS 'and at or before this one; exactly here unless it is gone.';
COMMENT ON COLUMN disclosured.ended.update_id IS 'Id of the update that ended it; empty where unknown.';
COMMENT ON COLUMN disclosured.ended.record_time IS 'Record time of that update.';
COMMENT ON COLUMN disclosured.ended.since IS 'Record time of the contract''s last activation; null where unknown.';
COMMENT ON COLUMN disclosured.ended.successors IS 'Contract ids in its place: one where superseded, 16 or more in the order of their prefixes where split.';
COMMENT ON COLUMN disclosured.ended.scope_id IS 'Scope, for replay nodes.';
COMMENT ON COLUMN disclosured.ended.prefix IS 'Prefix in lowercase hex, for replay nodes.';

CREATE TABLE disclosured.applied_update (
    history       bigint NOT NULL,
    generation    bigint NOT NULL,
    commit_seq    bigint NOT NULL,
    ledger_offset bigint NOT NULL,
    update_id     text   COLLATE "C" NOT NULL,
    record_time   timestamptz,
    PRIMARY KEY (history, ledger_offset)
);
CREATE INDEX applied_update_by_id ON disclosured.applied_update (history, update_id);
COMMENT ON TABLE disclosured.applied_update IS 'History: the updates that were applied.';
COMMENT ON COLUMN disclosured.applied_update.history IS 'History that it belongs to.';
COMMENT ON COLUMN disclosured.applied_update.generation IS 'Generation in which it was applied.';
COMMENT ON COLUMN disclosured.applied_update.commit_seq IS 'Commit that wrote it.';
COMMENT ON COLUMN disclosured.applied_update.ledger_offset IS 'Ledger offset of the update.';
COMMENT ON COLUMN disclosured.applied_update.update_id IS 'Id of the update.';
COMMENT ON COLUMN disclosured.applied_update.record_time IS 'Record time of the update.';

-- The one table that is not made here: goose's own, which records the versions applied.
COMMENT ON TABLE disclosured.schema_version IS 'Migrations of this schema that were applied, as goose records them.';
COMMENT ON COLUMN disclosured.schema_version.id IS 'Number of the record.';
COMMENT ON COLUMN disclosured.schema_version.version_id IS 'Version of the migration, the number in its file''s name.';
COMMENT ON COLUMN disclosured.schema_version.is_applied IS 'Whether it was applied or undone.';
COMMENT ON COLUMN disclosured.schema_version.tstamp IS 'When.';

-- +goose Down

DROP TABLE disclosured.applied_update;
DROP TABLE disclosured.ended;
DROP TABLE disclosured.consume;
DROP TABLE disclosured.missing_digest;
DROP TABLE disclosured.known_scope;
DROP TABLE disclosured.removal;
DROP TABLE disclosured.ghost;
DROP TABLE disclosured.contract;
DROP TABLE disclosured.scope;
DROP TABLE disclosured.cursor;
DROP TABLE disclosured.generation;
DROP TABLE disclosured.lease;
