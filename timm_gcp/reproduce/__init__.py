"""Every table and figure of the paper by one command: `timm-gcp reproduce TABLE`.

`paper` holds the printed figures, `catalog` what each table and figure is made of, `setup` where data and results lie,
`jobs` the runs, `execute` runs them, `report` prints the table beside the paper's. docs/reproduce.md is the manual.
"""
