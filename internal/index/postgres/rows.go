package postgres

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// contractColumns are the columns of the tables contract and ghost, in the order of contractRow.
var contractColumns = []string{
	"generation", "commit_seq", "contract_id", "synchronizer_id", "reassignment_counter", "in_flight", "target", "class",
	"package_name", "package_id", "module", "entity", "signatories", "observers", "created_at",
	"ledger_offset", "update_id", "record_time", "parent_id", "blob_check", "blob_fault", "blob",
	"kind", "scope_id", "prefix", "split_threshold", "consumed_count", "consumed", "payload",
}

// contractRow is one entry as a row.
func contractRow(generation, commitSeq int64, e *index.Entry, ids scopeIDs) ([]any, error) {
	row := []any{
		generation, commitSeq, e.ContractID, e.SynchronizerID, int64(e.ReassignmentCounter), e.InFlight, e.Target, int16(e.Class),
		e.PackageName, e.TemplateID.PackageID, e.TemplateID.Module, e.TemplateID.Entity, texts(e.Signatories), texts(e.Observers), timeColumn(e.CreatedAt),
		e.Offset, e.UpdateID, timeColumn(e.RecordTime), e.ParentID, int16(e.BlobCheck), storable(e.BlobFault), e.Blob,
	}
	node, ok := e.Payload.(*wormhole.ReplayNode)
	if !ok {
		kind, payload, err := encodePayload(e.Payload)
		if err != nil {
			return nil, fmt.Errorf("contract %s: %w", e.ContractID, err)
		}
		return append(row, kind, nil, nil, nil, nil, nil, payload), nil
	}
	consumed := node.Consumed.Packed()
	if consumed == nil {
		consumed = []byte{}
	}
	return append(row, kindReplayNode, ids[index.ScopeOf(e.PackageName, node)].id, node.Prefix.String(), node.SplitThreshold, int32(node.Consumed.Len()), consumed, nil), nil
}

// selectContract lists the columns in the order of contractScan, of a table called c.
const selectContract = `c.contract_id, c.synchronizer_id, c.reassignment_counter, c.in_flight, c.target, c.class,
	c.package_name, c.package_id, c.module, c.entity, c.signatories, c.observers, c.created_at,
	c.ledger_offset, c.update_id, c.record_time, c.parent_id, c.blob_check, c.blob_fault, c.blob,
	c.kind, c.scope_id, c.prefix, c.split_threshold, c.consumed, c.payload::text`

// scopeLookup gives a scope by its number.
type scopeLookup func(id int64) (index.Scope, bool)

// contractScan receives one row.
type contractScan struct {
	entry                 index.Entry
	counter               int64
	class, blobCheck      int16
	createdAt, recordTime *time.Time
	kind                  string
	scopeID, threshold    *int64
	prefix, payload       *string
	consumed              []byte
}

func (r *contractScan) targets() []any {
	e := &r.entry
	return []any{
		&e.ContractID, &e.SynchronizerID, &r.counter, &e.InFlight, &e.Target, &r.class,
		&e.PackageName, &e.TemplateID.PackageID, &e.TemplateID.Module, &e.TemplateID.Entity, &e.Signatories, &e.Observers, &r.createdAt,
		&e.Offset, &e.UpdateID, &r.recordTime, &e.ParentID, &r.blobCheck, &e.BlobFault, &e.Blob,
		&r.kind, &r.scopeID, &r.prefix, &r.threshold, &r.consumed, &r.payload,
	}
}

// take makes the entry of the row that was scanned.
func (r *contractScan) take(scopes scopeLookup) (*index.Entry, error) {
	e := r.entry
	e.ReassignmentCounter = uint64(r.counter)
	e.Class, e.BlobCheck = index.Class(r.class), ledger.BlobCheck(r.blobCheck)
	e.CreatedAt, e.RecordTime = timeOf(r.createdAt), timeOf(r.recordTime)
	var err error
	switch {
	case r.kind == kindReplayNode:
		e.Payload, err = r.node(scopes)
	case r.payload == nil:
		err = fmt.Errorf("kind %q without payload", r.kind)
	default:
		e.Payload, err = decodePayload(r.kind, []byte(*r.payload))
	}
	if err != nil {
		return nil, err
	}
	if r.blobCheck < 0 || r.blobCheck > int16(ledger.BlobMissing) {
		return nil, fmt.Errorf("a check of its blob with the result %d", r.blobCheck)
	}
	return &e, nil
}

func (r *contractScan) node(scopes scopeLookup) (*wormhole.ReplayNode, error) {
	if r.scopeID == nil || r.prefix == nil || r.threshold == nil {
		return nil, fmt.Errorf("a replay node without scope, prefix or threshold")
	}
	scope, ok := scopes(*r.scopeID)
	if !ok {
		return nil, fmt.Errorf("unknown scope %d", *r.scopeID)
	}
	prefix, err := wormhole.ParsePrefix(*r.prefix)
	if err != nil {
		return nil, err
	}
	consumed, err := wormhole.UnpackSuffixSet(r.consumed)
	if err != nil {
		return nil, err
	}
	return &wormhole.ReplayNode{Consumer: scope.Consumer, Operator: scope.Operator, Namespace: scope.Namespace,
		Prefix: prefix, SplitThreshold: *r.threshold, Consumed: consumed}, nil
}

// eachContract reads all rows of a query over selectContract. Rows that can't be decoded are given to unreadable, and the rest is read.
func eachContract(rows pgx.Rows, scopes scopeLookup, each func(*index.Entry) error, unreadable func(error)) error {
	defer rows.Close()
	scan := rowScanner{rows: rows}
	for rows.Next() {
		var row contractScan // fresh for each row: what was scanned is kept
		err := scan.scan(row.targets())
		var e *index.Entry
		if err == nil {
			e, err = row.take(scopes)
		}
		if err != nil {
			unreadable(fmt.Errorf("stored contract %s: %w", row.entry.ContractID, err))
			continue
		}
		if err := each(e); err != nil {
			return err
		}
	}
	return rows.Err()
}

// rowScanner scans rows as pgx.Rows.Scan does, but that a value which fits no target (a null in a list, a time without end) leaves the
// rest of the rows to be read.
type rowScanner struct {
	rows  pgx.Rows
	plans []pgtype.ScanPlan
}

// scan scans the present row. All rows' targets are of the same types.
func (s *rowScanner) scan(targets []any) error {
	fields := s.rows.FieldDescriptions()
	if s.plans == nil {
		types := s.rows.Conn().TypeMap()
		for i, field := range fields {
			s.plans = append(s.plans, types.PlanScan(field.DataTypeOID, field.Format, targets[i]))
		}
	}
	for i, value := range s.rows.RawValues() {
		if err := s.plans[i].Scan(value, targets[i]); err != nil {
			return fmt.Errorf("column %s: %w", fields[i].Name, err)
		}
	}
	return nil
}

// fewRows is up to how many rows are written as INSERTs, sent together; COPY costs two more round trips and less per row.
const fewRows = 8

// table is a table's rows to be written.
type table struct {
	name    string
	columns []string
	rows    [][]any
}

// queue adds the rows to the batch where they are few.
func (t table) queue(batch *pgx.Batch) {
	if len(t.rows) > fewRows {
		return
	}
	insert := insertStatement(t.name, t.columns)
	for _, row := range t.rows {
		batch.Queue(insert, row...)
	}
}

// copyMany writes the rows where they are not few.
func (t table) copyMany(ctx context.Context, tx pgx.Tx) error {
	if len(t.rows) <= fewRows {
		return nil
	}
	return t.copyAll(ctx, tx)
}

// copyAll writes the rows, however many.
func (t table) copyAll(ctx context.Context, tx pgx.Tx) error {
	if len(t.rows) == 0 {
		return nil
	}
	_, err := tx.CopyFrom(ctx, pgx.Identifier{schema, t.name}, t.columns, pgx.CopyFromRows(t.rows))
	if err != nil {
		return fmt.Errorf("writing %d rows of %s: %w", len(t.rows), t.name, err)
	}
	return nil
}

// jsonColumns are the columns of type jsonb. They are given as text, and the statement says so: in the modes that let no server
// describe a statement, a string is a text, and bytes would be a bytea.
var jsonColumns = map[string]bool{"payload": true, "successors": true}

// insertStatement is INSERT INTO name (columns) VALUES ($1, …).
func insertStatement(name string, columns []string) string {
	var places strings.Builder
	for i, column := range columns {
		if i > 0 {
			places.WriteString(", ")
		}
		fmt.Fprintf(&places, "$%d", i+1)
		if jsonColumns[column] {
			places.WriteString("::text::jsonb")
		}
	}
	return "INSERT INTO " + schema + "." + name + " (" + strings.Join(columns, ", ") + ") VALUES (" + places.String() + ")"
}

// texts is a text[] that is never null.
func texts(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}

// timeColumn is a time as a column holds it: in microseconds, null for the zero time.
func timeColumn(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC().Truncate(time.Microsecond)
	return &t
}

// timeOf reads what timeColumn wrote.
func timeOf(column *time.Time) time.Time {
	if column == nil {
		return time.Time{}
	}
	return column.UTC()
}
