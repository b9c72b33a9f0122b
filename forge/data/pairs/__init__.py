"""SFT rows: made from generated problems and their answers, or read from files. Called while a run
is prepared; what is judged comes in as a port."""
