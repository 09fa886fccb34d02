"""Everything that knows a vendor: stores, engines, launchers, found through entry points."""
