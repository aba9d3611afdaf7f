package ledgersim

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2/admin"
)

type userService struct {
	admin.UnimplementedUserManagementServiceServer
	sim *Sim
}

func (s userService) CreateUser(ctx context.Context, req *admin.CreateUserRequest) (*admin.CreateUserResponse, error) {
	id := req.GetUser().GetId()
	r := callerOf(ctx).mayAdminister()
	if r == nil && id == "" {
		r = missingField("user.id")
	}
	if r != nil {
		return nil, s.sim.asStatus(r, nil)
	}
	made := (&user{id: id, primaryParty: req.GetUser().GetPrimaryParty()}).with(rightsOf(req.GetRights()))
	s.sim.change(func(l *state, _ time.Time) {
		if l.users[id] != nil {
			r = reject(alreadyExists, "USER_ALREADY_EXISTS", "creating user failed, as user %q already exists", id).about("USER", id)
			return
		}
		l.users[id] = made
	})
	if r != nil {
		return nil, s.sim.asStatus(r, nil)
	}
	return &admin.CreateUserResponse{User: userMessage(made)}, nil
}

// find is the user that a request means: the one that it names, or the caller's own. Others than oneself need an administrator.
func (s userService) find(ctx context.Context, id string) (*user, *rejection) {
	c := callerOf(ctx)
	switch {
	case id == "" && c == nil:
		return nil, missingUser("requests with an empty user-id are only supported if there is an authenticated user")
	case id == "":
		id = c.userID
	}
	if c != nil && c.userID != id {
		if r := c.mayAdminister(); r != nil {
			return nil, r
		}
	}
	var found *user
	s.sim.read(func(l *state) { found = l.users[id] })
	if found == nil {
		return nil, userNotFound(id)
	}
	return found, nil
}

func userNotFound(id string) *rejection {
	return reject(notFound, "USER_NOT_FOUND", "getting user failed for unknown user %q", id).about("USER", id)
}

func (s userService) GetUser(ctx context.Context, req *admin.GetUserRequest) (*admin.GetUserResponse, error) {
	u, r := s.find(ctx, req.GetUserId())
	if r != nil {
		return nil, s.sim.asStatus(r, nil)
	}
	return &admin.GetUserResponse{User: userMessage(u)}, nil
}

func (s userService) ListUserRights(ctx context.Context, req *admin.ListUserRightsRequest) (*admin.ListUserRightsResponse, error) {
	u, r := s.find(ctx, req.GetUserId())
	if r != nil {
		return nil, s.sim.asStatus(r, nil)
	}
	return &admin.ListUserRightsResponse{Rights: rightMessages(u.rights)}, nil
}

func (s userService) ListUsers(ctx context.Context, _ *admin.ListUsersRequest) (*admin.ListUsersResponse, error) {
	if r := callerOf(ctx).mayAdminister(); r != nil {
		return nil, s.sim.asStatus(r, nil)
	}
	out := &admin.ListUsersResponse{}
	s.sim.read(func(l *state) {
		for _, id := range slices.Sorted(maps.Keys(l.users)) {
			out.Users = append(out.Users, userMessage(l.users[id]))
		}
	})
	return out, nil
}

func (s userService) GrantUserRights(ctx context.Context, req *admin.GrantUserRightsRequest) (*admin.GrantUserRightsResponse, error) {
	asked := rightsOf(req.GetRights())
	var granted []right
	r := s.changeUser(ctx, req.GetUserId(), func(u *user) *user {
		granted = slices.DeleteFunc(asked, u.has)
		return u.with(slices.Concat(u.rights, granted))
	})
	if r != nil {
		return nil, s.sim.asStatus(r, nil)
	}
	return &admin.GrantUserRightsResponse{NewlyGrantedRights: rightMessages(granted)}, nil
}

func (s userService) RevokeUserRights(ctx context.Context, req *admin.RevokeUserRightsRequest) (*admin.RevokeUserRightsResponse, error) {
	asked := rightsOf(req.GetRights())
	var revoked []right
	r := s.changeUser(ctx, req.GetUserId(), func(u *user) *user {
		revoked = slices.DeleteFunc(asked, func(one right) bool { return !u.has(one) })
		return u.with(slices.DeleteFunc(slices.Clone(u.rights), func(one right) bool { return slices.Contains(revoked, one) }))
	})
	if r != nil {
		return nil, s.sim.asStatus(r, nil)
	}
	return &admin.RevokeUserRightsResponse{NewlyRevokedRights: rightMessages(revoked)}, nil
}

func (s userService) DeleteUser(ctx context.Context, req *admin.DeleteUserRequest) (*admin.DeleteUserResponse, error) {
	if r := s.changeUser(ctx, req.GetUserId(), func(*user) *user { return nil }); r != nil {
		return nil, s.sim.asStatus(r, nil)
	}
	return &admin.DeleteUserResponse{}, nil
}

// changeUser replaces a user by what the function makes of it, or removes it for nil. Only administrators may.
func (s userService) changeUser(ctx context.Context, id string, change func(*user) *user) *rejection {
	if r := callerOf(ctx).mayAdminister(); r != nil {
		return r
	}
	if id == "" {
		return missingField("user_id")
	}
	var r *rejection
	s.sim.change(func(l *state, _ time.Time) {
		before := l.users[id]
		if before == nil {
			r = userNotFound(id)
			return
		}
		if after := change(before); after != nil {
			l.users[id] = after
			return
		}
		delete(l.users, id)
	})
	return r
}

func userMessage(u *user) *admin.User {
	return &admin.User{Id: u.id, PrimaryParty: u.primaryParty, Metadata: &admin.ObjectMeta{ResourceVersion: "0"}}
}

// rightsOf reads the kinds of rights that mean something here; others are left out.
func rightsOf(list []*admin.Right) []right {
	var out []right
	for _, r := range list {
		switch kind := r.GetKind().(type) {
		case *admin.Right_ParticipantAdmin_:
			out = append(out, right{participantAdmin, ""})
		case *admin.Right_CanActAs_:
			out = append(out, right{canActAs, kind.CanActAs.GetParty()})
		case *admin.Right_CanReadAs_:
			out = append(out, right{canReadAs, kind.CanReadAs.GetParty()})
		case *admin.Right_CanReadAsAnyParty_:
			out = append(out, right{canReadAsAnyParty, ""})
		}
	}
	return out
}

func rightMessages(list []right) []*admin.Right {
	out := make([]*admin.Right, 0, len(list))
	for _, r := range list {
		m := &admin.Right{}
		switch r.kind {
		case participantAdmin:
			m.Kind = &admin.Right_ParticipantAdmin_{ParticipantAdmin: &admin.Right_ParticipantAdmin{}}
		case canActAs:
			m.Kind = &admin.Right_CanActAs_{CanActAs: &admin.Right_CanActAs{Party: r.party}}
		case canReadAs:
			m.Kind = &admin.Right_CanReadAs_{CanReadAs: &admin.Right_CanReadAs{Party: r.party}}
		case canReadAsAnyParty:
			m.Kind = &admin.Right_CanReadAsAnyParty_{CanReadAsAnyParty: &admin.Right_CanReadAsAnyParty{}}
		}
		out = append(out, m)
	}
	return out
}
