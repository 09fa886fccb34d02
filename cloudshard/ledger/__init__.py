"""Keys, records and the protocol: claim, renew, take over, commit, publish, seal."""
