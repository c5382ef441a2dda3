"""How much the program adds to what it is made of. Printed as ratios and lags from one run, so that machines compare."""
