package api

import "context"

// NewService is the service without a server.
func NewService(cfg Config, deps Deps) *Service { return newService(cfg, deps, context.Background()) }

// AuditPlaces are the places of full audits and of others: who puts a token into one has a place.
func (s *Server) AuditPlaces() (full, others chan struct{}) {
	return s.service.auditing, s.service.audits
}
