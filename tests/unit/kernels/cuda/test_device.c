/* The program of device.cu, linked as C programs are. */
int sl_device_test(void);

int main(void)
{
    return sl_device_test();
}
