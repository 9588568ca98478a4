"""runtime/distributed"""
