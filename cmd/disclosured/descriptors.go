package main

import (
	"fmt"
	"math"

	"github.com/disclosured/disclosured/internal/api"
)

// What the process needs of file descriptors beside those of its callers' connections, at most.
const (
	// ownDescriptors are the standard streams', the runtime's, the listeners', one for a connection that is on its way to make room, those of
	// the files that are read again as they change, and some that a supervisor left open.
	ownDescriptors = 32
	// participantDescriptors are those of the connection to the participant and of the next one, to each of its addresses, of the names'
	// resolution, and of the tokens' issuer.
	participantDescriptors = 16
	// perDatabaseConnection: where a question is given up, a second connection tells the database so while the first is closed.
	perDatabaseConnection = 2
)

// fitted are the API's settings with no more connections than there are descriptors for. A listener without descriptors accepts nobody, be it
// a probe, as long as those who have them keep them; and PostgreSQL and the participant would not be reached any more.
func (d *daemon) fitted(config api.Config) (api.Config, error) {
	limit, known := descriptorLimit()
	if !known {
		return config, nil
	}
	ops := d.ops != nil || d.cfg.Ops.Listen != ""
	reserved := d.reservedDescriptors()
	limits, least, err := config.Limits.Fit(limit-reserved, ops)
	switch {
	case err != nil:
		return config, configError{fmt.Errorf("this process may open %d files (RLIMIT_NOFILE), and the least that it works with are %d: %d for database, participant and files, and %d for callers: raise the limit (`ulimit -n`, LimitNOFILE of a systemd unit, ulimits of a container) to %d or more",
			limit, reserved+least, reserved, least, saturated(reserved, config.Limits.Connections(ops)))}
	case limits != config.Limits:
		d.log.Warn("fewer connections are taken than configured: this process may not open enough files; raise RLIMIT_NOFILE to needed_files",
			"files", limit, "needed_files", saturated(reserved, config.Limits.Connections(ops)), "reserved_files", reserved,
			"max_connections", limits.MaxConnections, "of", config.Limits.MaxConnections, "max_connections_per_caller", limits.MaxConnectionsPerCaller,
			"max_calls", limits.MaxCalls, "max_calls_per_caller", limits.MaxCallsPerCaller, "ops_connections", limits.MaxOpsConnections)
	}
	config.Limits = limits
	return config, nil
}

// reservedDescriptors are what is needed beside the callers' connections.
func (d *daemon) reservedDescriptors() int {
	n := ownDescriptors + participantDescriptors
	if d.hasDatabase() {
		n += perDatabaseConnection * d.cfg.Database.MaxConnections
		if d.cfg.guardServed() {
			n += perDatabaseConnection * guardConnections
		}
	}
	return n
}

func saturated(a, b int) int { return min(a, math.MaxInt-b) + b }
