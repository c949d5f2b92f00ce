"""How layactl is held to the reference: the same requests on both sides, number by number.

request_kinds -> reference_run (the laya package) or golden_file (what it said once) -> comparison (layactl against it)
"""
