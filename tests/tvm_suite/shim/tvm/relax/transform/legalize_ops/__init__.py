"""TVM's room of legalizations."""
