"""jaxprs"""
