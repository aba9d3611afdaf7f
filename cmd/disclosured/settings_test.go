package main

import (
	"strings"
	"testing"
	"time"
)

func TestValuesThatAreNotOfTheSettingsTypeAreRefused(t *testing.T) {
	for name, c := range map[string]struct{ yaml, names string }{
		"a duration without a unit":     {"database:\n  history_retention: 720\n", "history_retention"},
		"a fraction as a duration":      {"api:\n  expiry_margin: 1.5\n", "expiry_margin"},
		"a duration as text, unitless":  {"api:\n  max_wait: \"20\"\n", "max_wait"},
		"a truth value as a duration":   {"api:\n  max_wait: true\n", "max_wait"},
		"a fraction of a whole number":  {"api:\n  burst_per_caller: 3.7\n", "burst_per_caller"},
		"a truth value as a number":     {"api:\n  burst_per_caller: true\n", "burst_per_caller"},
		"a number as a truth value":     {"api:\n  insecure_listen: 2\n", "insecure_listen"},
		"one as a truth value":          {"api:\n  insecure_listen: 1\n", "insecure_listen"},
		"a word as a truth value":       {"api:\n  insecure_listen: \"yes please\"\n", "insecure_listen"},
		"text as a number":              {"api:\n  rate_per_caller: many\n", "rate_per_caller"},
		"a number as text":              {"participant:\n  oauth_client_id: 12\n", "oauth_client_id"},
		"a list as text":                {"participant:\n  address: [a, b]\n", "address"},
		"a number in a list":            {"participant:\n  read_as: [1]\n", "read_as"},
		"a number as a list":            {"participant:\n  read_as: 1\n", "read_as"},
		"text as a section":             {"api: on\n", "api"},
		"a key without a value":         {"database:\n  history_retention:\n", "history_retention"},
		"a section without a value":     {"api:\n", "api"},
		"a number beyond the integers":  {"api:\n  burst_per_caller: 99999999999999999999\n", "burst_per_caller"},
		"a duration beyond all reckons": {"api:\n  max_wait: 9999999h\n", "max_wait"},
	} {
		if _, err := load(t, c.yaml, nil); err == nil || !strings.Contains(err.Error(), c.names) {
			t.Errorf("%s: got %v, want an error that names %s", name, err, c.names)
		}
	}
	for _, variable := range []string{"DISCLOSURED_DATABASE_HISTORY_RETENTION=720", "DISCLOSURED_DATABASE_MIGRATE=", "DISCLOSURED_API_BURST_PER_CALLER=3.7"} {
		if _, err := load(t, "", []string{variable}); err == nil {
			t.Errorf("%s: got no error", variable)
		}
	}
}

func TestValuesOfTheSettingsTypeAreTaken(t *testing.T) {
	c, err := load(t, "database:\n  history_retention: 0\n  migrate: false\n  max_connections: \"12\"\napi:\n  rate_per_caller: 3\n  max_wait: \"0\"\n"+
		"  expiry_margin: 90s\nparticipant:\n  read_as: a::1\n",
		[]string{"DISCLOSURED_API_INSECURE_LISTEN=1", "DISCLOSURED_API_BURST_PER_CALLER=7"})
	if err != nil {
		t.Fatal(err)
	}
	if c.Database.HistoryRetention != 0 || c.Database.Migrate || c.Database.MaxConnections != 12 || c.API.RatePerCaller != 3 || c.API.MaxWait != 0 ||
		c.API.ExpiryMargin != 90*time.Second || len(c.Participant.ReadAs) != 1 || !c.API.InsecureListen || c.API.BurstPerCaller != 7 {
		t.Errorf("got\n%s", c.render())
	}
}

func TestDurationsTooShortToMeanAreRefused(t *testing.T) {
	c, err := load(t, "", nil, "--database-history-retention", "720ns", "--api-expiry-margin", "1us")
	if err != nil {
		t.Fatal(err)
	}
	err = c.validate()
	for _, want := range []string{"database.history_retention", "api.expiry_margin"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the fault of %s is missing in:\n%v", want, err)
		}
	}
}
