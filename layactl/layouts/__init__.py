"""Decision layouts: how questions become sequences, which head reads them, and what an answer says."""
