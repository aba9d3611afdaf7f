package api

import "context"

// NewService is the service without a server.
func NewService(cfg Config, deps Deps) *Service { return newService(cfg, deps, context.Background()) }
