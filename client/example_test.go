package client_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/disclosured/disclosured/client"
	"github.com/disclosured/disclosured/replayguard"
)

// A relayer among others: of all that share the guard, one pays for the submission.
func ExampleRelayer() {
	tls, err := credentials.NewClientTLSFromFile("ca.pem", "") // or with a client certificate: its subject is who the guard takes us for
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	dial := []grpc.DialOption{grpc.WithTransportCredentials(tls)}
	services := []string{"disclosured-1.example.com:7420", "disclosured-2.example.com:7420"}

	c, err := client.New(services, client.Options{
		Anchors: client.Anchors{Operators: []string{"operator::1220…"}, GuardianGovernance: "governance::1220…"},
		Dial:    dial,
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	defer c.Close()
	guard, err := client.NewRemoteGuard(services, client.RemoteGuardOptions{
		Dial: dial,
		GuardOptions: client.GuardOptions{
			Log: slog.Default(),
			Observe: func(e client.Event) {
				if e.Kind == client.EventUnguarded {
					slog.Error("the replay guard can't be had: submissions go ahead unguarded", "error", e.Err) // and count it
				}
			},
		},
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	defer guard.Close()
	relayer, err := client.NewRelayer(c, guard)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}

	var submit client.SubmitFunc // to the relayer's own participant
	got, err := relayer.Redeem(context.Background(), client.Request{Consumer: "app::1220…", VAA: []byte("…")}, submit)
	switch {
	case got.Submitted():
		fmt.Println("we submitted, and it is", got.Outcome.State, "by", got.Outcome.UpdateID, "error:", err)
	case got.Admission.Decision == client.AlreadyReceived:
		fmt.Println("another relayer is at it until", got.Admission.ExpiresAt)
	case got.Admission.Decision == client.AlreadyConsumed:
		fmt.Println("consumed meanwhile by", got.Admission.UpdateID)
	case errors.Is(err, client.ErrNotAdmitted):
		fmt.Println("the guard says no:", got.Admission.Reason, "again after", got.Admission.RetryAfter)
	default:
		fmt.Println("it ended before the guard was asked:", got.Outcome.State, got.Outcome.Message, err)
	}
}

// A guard within the process, before any function that pays for something.
func ExampleNewLocalGuard() {
	guard, err := client.NewLocalGuard(client.LocalGuardOptions{GuardOptions: client.GuardOptions{TTL: time.Minute}})
	if err != nil {
		fmt.Println(err)
		return
	}
	message := client.Submission{Subject: replayguard.Subject{Operator: "operator::1220", Consumer: "app::1220", Digest: [32]byte{1}}}
	for range 2 {
		admission, err := guard.Admit(context.Background(), message, func(context.Context, client.Admission) client.Ending {
			fmt.Println("submitting")
			return client.EndingCommitted
		})
		fmt.Println(admission.Decision, err)
	}
	// Output:
	// submitting
	// admitted <nil>
	// already received <nil>
}
