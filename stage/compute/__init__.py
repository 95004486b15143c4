"""What computing a step asks for, whatever computes it, and the parts that both backends share."""
