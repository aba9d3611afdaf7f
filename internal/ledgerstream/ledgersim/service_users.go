package ledgersim

import (
	"github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2/admin"
)

type userService struct {
	admin.UnimplementedUserManagementServiceServer
	sim *Sim
}
