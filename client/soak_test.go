package client_test

const redeemerEnv = "DISCLOSURED_TEST_REDEEMER"

func redeemerMain() int { return 0 }
